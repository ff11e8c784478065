/** Texts that grow at the same time, side by side: one column each, wrapped at words, printed row by row as they come. */
import { StringDecoder } from 'node:string_decoder';

interface Column {
  readonly decoder: StringDecoder;
  text: string;
  readonly lines: string[];
  state: 'waiting' | 'growing' | 'over';
}

export class Columns {
  private readonly columns = new Map<string, Column>();
  private readonly width: number;

  /** @param total - characters of a row */
  constructor(
    private readonly names: readonly string[],
    total: number,
    private readonly say: (line: string) => void,
  ) {
    this.width = Math.max(16, Math.floor((total + 3) / names.length) - 3);
    for (const name of names) {
      this.columns.set(name, { decoder: new StringDecoder('utf8'), text: '', lines: [], state: 'waiting' });
    }
  }

  /** The next bytes of a text; a character may be cut between two. */
  add(name: string, bytes: Buffer): void {
    const column = this.columns.get(name);
    if (column === undefined || column.state === 'over') return;
    if (column.state === 'waiting') {
      column.state = 'growing';
      column.lines.push(`[${name}]`);
    }
    column.text += column.decoder.write(bytes);
    this.wrap(column);
    this.print();
  }

  /** A text is over; what is left of it is printed. */
  end(name: string): void {
    const column = this.columns.get(name);
    if (column === undefined || column.state === 'over') return;
    column.text += column.decoder.end();
    this.wrap(column);
    if (column.text.trim() !== '') column.lines.push(column.text.trim());
    column.text = '';
    column.state = 'over';
    this.print();
  }

  private wrap(column: Column): void {
    for (;;) {
      const newline = column.text.indexOf('\n');
      let cut = newline >= 0 && newline <= this.width ? newline : -1;
      if (cut < 0 && column.text.length > this.width) {
        const space = column.text.lastIndexOf(' ', this.width);
        cut = space > 0 ? space : this.width;
      }
      if (cut < 0) return;
      const line = column.text.slice(0, cut).trim();
      if (line !== '') column.lines.push(line);
      column.text = column.text.slice(cut).replace(/^[ \n]/, '');
    }
  }

  /** A row for every line that each growing text has; what has not begun or is over leaves a gap. */
  private print(): void {
    const all = this.names.map((name) => this.columns.get(name)!);
    const isReady = (): boolean =>
      all.some(({ lines }) => lines.length > 0) &&
      all.every(({ state, lines }) => state !== 'growing' || lines.length > 0);
    while (isReady()) {
      const row = all.map(({ lines }) => (lines.shift() ?? '').slice(0, this.width).padEnd(this.width));
      this.say(row.join(' | ').trimEnd());
    }
  }
}
