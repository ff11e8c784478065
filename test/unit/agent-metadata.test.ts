/** NIXL agents' metadata: taken out of handoffs, put back from the registration, refused where they disagree. */
import { agentsOf, restoreAgentMetadata, stripAgentMetadata } from '../../lib/control/protocol/agent-metadata.js';
import { encodeValue, wireMap } from '../../lib/control/protocol/wire-bytes.js';

const hex = (bytes: Uint8Array): string => Buffer.from(bytes).toString('hex');

describe("an agent's own metadata", () => {
  const agent = (name: string, blob: string) => wireMap({ agent_name: name, agent_metadata_b64: blob });

  it('is put back as the last key, at any depth, and changes nothing in place', () => {
    const registration = [
      wireMap({ ...Object.fromEntries(agent('a', 'AAA')), ssm: wireMap({ conv: agent('b', 'BBB') }) }),
    ];
    const handoff = wireMap({
      tp_metas: [wireMap({ agent_name: 'a', x: 1 })],
      ssm: wireMap({ conv: [agent('b', 'BBB')] }),
    });
    const before = encodeValue(handoff);
    const restored = restoreAgentMetadata(handoff, agentsOf(registration));
    expect(encodeValue(handoff)).toEqual(before);
    expect(hex(encodeValue(restored))).toEqual(
      hex(
        encodeValue(
          wireMap({
            tp_metas: [wireMap({ agent_name: 'a', x: 1, agent_metadata_b64: 'AAA' })],
            ssm: wireMap({ conv: [agent('b', 'BBB')] }),
          }),
        ),
      ),
    );
    expect(stripAgentMetadata(restored)).toEqual(
      wireMap({
        tp_metas: [wireMap({ agent_name: 'a', x: 1 })],
        ssm: wireMap({ conv: [wireMap({ agent_name: 'b' })] }),
      }),
    );
  });

  it('stays where no agent is named', () => {
    const nameless = wireMap({ agent_metadata_b64: 'AAA' });
    expect(stripAgentMetadata(nameless)).toEqual(nameless);
    expect(restoreAgentMetadata(nameless, new Map())).toEqual(nameless);
  });

  it('is refused when it is unknown, another, or registered twice', () => {
    const agents = agentsOf([agent('a', 'AAA'), agent('a', 'AAA')]);
    expect(() => restoreAgentMetadata(wireMap({ agent_name: 'c' }), agents)).toThrow(
      'agent_name: expected an agent of the registration, got "c"',
    );
    expect(() => restoreAgentMetadata(wireMap({ agent_name: 5 }), agents)).toThrow(
      'expected an agent of the registration, got 5',
    );
    expect(() => restoreAgentMetadata(agent('a', 'BBB'), agents)).toThrow(
      'agent_metadata_b64 of a: expected the metadata of the registration',
    );
    expect(() => agentsOf([agent('a', 'AAA'), agent('a', 'BBB')])).toThrow('agent_metadata_b64 of a');
  });
});
