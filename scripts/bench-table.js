'use strict';
// Tables of benchmark rows (test/support/bench-row.ts) in Markdown, the machine they were measured on, and where documents
// keep them: between `<!-- NAME:begin -->` and `<!-- NAME:end -->`.
const { readFileSync, writeFileSync } = require('node:fs');
const os = require('node:os');
const { basename } = require('node:path');

const digits = (value) => (Math.abs(value) >= 100 ? value.toFixed(0) : Number(value.toPrecision(3)).toString());

function hardwareLine() {
  const [cpu] = os.cpus();
  const memory = (os.totalmem() / 2 ** 30).toFixed(0);
  return `${cpu?.model.trim() ?? os.arch()}, ${os.availableParallelism()} cores, ${memory} GiB, ${os.type()} ${os.release()}, Node ${process.version}`;
}

/** Cells as a Markdown table as prettier writes it; the first row is the head. */
function alignedTable(cells) {
  const table = cells.map((row) => row.map((cell) => String(cell).replaceAll('|', '\\|')));
  const widths = table[0].map((_, column) => Math.max(3, ...table.map((row) => row[column].length)));
  const line = (row) => `| ${row.map((cell, column) => cell.padEnd(widths[column])).join(' | ')} |\n`;
  return `${line(table[0])}${line(widths.map((width) => '-'.repeat(width)))}${table.slice(1).map(line).join('')}`;
}

function markdownTable(rows) {
  const cells = rows.map(({ name, value, unit, against, ratio, target, ok }) => [
    name,
    `${digits(value)} ${unit}`,
    against ?? '',
    ratio === null ? '' : digits(ratio),
    target ?? '',
    ok ? 'yes' : '**no**',
  ]);
  return alignedTable([['what', 'measured', 'against', 'ratio', 'target', 'met'], ...cells]);
}

/** @throws Error when the document has no such markers */
function replaceBetween(path, name, text) {
  const [begin, end] = [`<!-- ${name}:begin -->\n`, `<!-- ${name}:end -->`];
  const document = readFileSync(path, 'utf8');
  const from = document.indexOf(begin);
  const to = document.indexOf(end);
  if (from < 0 || to < from) throw new Error(`bench: ${basename(path)} has no markers ${name}`);
  writeFileSync(path, `${document.slice(0, from + begin.length)}\n${text}\n${document.slice(to)}`);
}

module.exports = { alignedTable, digits, hardwareLine, markdownTable, replaceBetween };
