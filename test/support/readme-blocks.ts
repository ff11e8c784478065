/**
 * Code blocks of a document that are promised to run. A block is tested when the line before its fence is
 * `<!-- tested: name -->`; an output block marked `<!-- output of: name -->` must then be exactly what it prints.
 */

export interface TestedBlock {
  readonly name: string;
  readonly code: string;
  /** What the document says it prints; null when it says nothing. */
  readonly output: string | null;
}

const marked = /^<!-- (tested|output of): ([a-z0-9-]+) -->\n\n?```(\w*)\n([^]*?)^```$/gm;

/** @throws Error when a marker stands before no block, names one twice, or promises the output of nothing */
export function testedBlocks(document: string): TestedBlock[] {
  const blocks = [...document.matchAll(marked)].map(([, kind = '', name = '', language = '', text = '']) => ({
    kind,
    name,
    language,
    text,
  }));
  const markers = [...document.matchAll(/<!-- (?:tested|output of):/g)].length;
  if (blocks.length !== markers) throw new Error(`${markers - blocks.length} marker(s) stand before no code block`);
  const code = blocks.filter(({ kind }) => kind === 'tested');
  const outputs = blocks.filter(({ kind }) => kind === 'output of');
  for (const { name, language } of code) {
    if (code.filter((other) => other.name === name).length > 1) throw new Error(`two tested blocks are named ${name}`);
    if (language !== 'ts') throw new Error(`the tested block ${name} is no \`ts\` block`);
  }
  for (const { name } of outputs) {
    if (!code.some((block) => block.name === name)) throw new Error(`output of ${name}, which is no tested block`);
  }
  return code.map(({ name, text }) => ({
    name,
    code: text,
    output: outputs.find((block) => block.name === name)?.text ?? null,
  }));
}

/** The text between `<!-- name:begin -->` and `<!-- name:end -->`, without the markers. */
export function betweenMarkers(document: string, name: string): string {
  const found = new RegExp(`<!-- ${name}:begin -->\\n([^]*?)<!-- ${name}:end -->`).exec(document)?.[1];
  if (found === undefined) throw new Error(`no <!-- ${name}:begin --> … <!-- ${name}:end -->`);
  return found;
}
