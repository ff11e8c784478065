/**
 * Section `nccl_op_order`: which tensors each rank sends and receives, in which order. A sender plans with itself as the
 * only source, as the reference's does; a receiver with all of them.
 */
import { rowMajorBuffer } from '../memory/axes-geometry.js';
import { ownedHeads, type KvLayout } from '../memory/kv-layout.js';
import { planKv, planKvReshard, type KvEndpoint } from '../transfer/plan-kv.js';
import { lowerToDescriptors } from '../transfer/program-descriptors.js';
import { programOf } from './descriptor-values.js';
import type { ExactObject, ExactValue } from './exact-json.js';
import { kvLayoutsOf } from './layout-values.js';
import { expectEqual, Mismatch, render } from './mismatch.js';
import { at, fieldsOf, integersOf, listOf, objectOf, type Section } from './section.js';

/** What the vector says of blocks only by the shapes: tokens and head dim. */
interface BlockShape {
  readonly tokens: number;
  readonly headDim: number;
  readonly blocks: readonly number[];
}

export const ncclOpOrderSection: Section = {
  name: 'nccl_op_order',
  groups: {
    cases(value) {
      const fields = fieldsOf(value, '', ['src', 'dst', 'blocks', 'sends', 'recvs'], ['name']);
      const shape = { ...shapeOf(fields), blocks: integersOf(fields['blocks'], 'blocks') };
      const sources = kvLayoutsOf(fields['src'], 'src', shape.headDim);
      const targets = kvLayoutsOf(fields['dst'], 'dst', shape.headDim);
      for (const source of sources) {
        const operations = targets.flatMap((target) => tensors([source], [target], target.globalRank, shape));
        expectOperations(fields, 'sends', source.globalRank, operations);
      }
      for (const target of targets) {
        const operations = sources.flatMap((source) =>
          tensors(sources, [target], source.globalRank, shape, (rank) => rank === source.globalRank),
        );
        expectOperations(fields, 'recvs', target.globalRank, operations);
      }
      for (const [key, ranks] of [['sends', sources] as const, ['recvs', targets] as const]) {
        for (const rank of Object.keys(objectOf(fields[key], key))) {
          if (!ranks.some(({ globalRank }) => String(globalRank) === rank)) {
            throw new Mismatch(at(key, rank), 'a rank of the case', render(rank));
          }
        }
      }
    },
  },
};

/** One tensor a transfer and block, from the planned sources that `isFrom` names. */
function tensors(
  sources: readonly KvLayout[],
  targets: readonly KvLayout[],
  peer: number,
  shape: BlockShape,
  isFrom: (rank: number) => boolean = () => true,
): unknown[] {
  return planKvReshard(sources, targets)
    .filter(({ sourceRank }) => isFrom(sourceRank))
    .flatMap(({ sourceRank, targetRank }) => {
      const source = sources.find(({ globalRank }) => globalRank === sourceRank)!;
      const target = targets.find(({ globalRank }) => globalRank === targetRank)!;
      const templates = planKv(endpointOf(source, shape), endpointOf(target, shape));
      const messages = lowerToDescriptors(programOf(templates, shape.blocks, shape.blocks), 'nccl');
      return messages.map((message) => ({ peer, shape: message.shape }));
    });
}

function endpointOf(layout: KvLayout, { tokens, headDim, blocks }: BlockShape): KvEndpoint {
  const heads = ownedHeads(layout);
  const buffer = rowMajorBuffer({
    elementBytes: 2,
    axes: [
      ['plane', 2],
      ['layer', layout.layerEnd - layout.layerStart],
      ['block', Math.max(...blocks, 0) + 1],
      ['token', tokens],
      ['head', heads.to - heads.from],
      ['dim', headDim],
    ],
  });
  return { layout, buffers: [buffer], layerStarts: [layout.layerStart] };
}

/** The first shape gives tokens and dim; all others must then follow from the layouts. */
function shapeOf(fields: ExactObject): { readonly tokens: number; readonly headDim: number } {
  for (const key of ['sends', 'recvs']) {
    for (const [rank, list] of Object.entries(objectOf(fields[key], key))) {
      const path = at(key, rank);
      const [first] = listOf(list, path);
      if (first === undefined) continue;
      const shape = integersOf(objectOf(first, `${path}[0]`)['shape'], `${path}[0].shape`);
      return { tokens: shape[2] ?? 1, headDim: shape[4] ?? 1 };
    }
  }
  return { tokens: 1, headDim: 1 };
}

/** A rank without an operation may be left out. */
function expectOperations(fields: ExactObject, key: string, rank: number, got: readonly unknown[]): void {
  const map = objectOf(fields[key], key);
  const expected = Object.hasOwn(map, String(rank)) ? map[String(rank)] : [];
  expectEqual(at(key, String(rank)), expected as ExactValue, got);
}
