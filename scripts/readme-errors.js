'use strict';
// `npm run readme:errors`: rewrites the error table of README.md from lib/errors.ts. The last column is written by hand
// and kept; a code without it is refused, by this script and by the tests.
const { readFileSync, writeFileSync } = require('node:fs');
const { dirname, join } = require('node:path');

const begin = '<!-- errors:begin -->\n';
const end = '<!-- errors:end -->';

/** The meanings that a document already gives, by code. */
function meaningsIn(document) {
  return new Map(
    [...document.matchAll(/^\| `([A-Z_]+)` +\|[^|]*\|[^|]*\| (.*?) +\|$/gm)].map(([, code, text]) => [code, text]),
  );
}

/** `document` with its error table made anew from `errorCodes`. */
function withErrorTable(document, errorCodes) {
  const from = document.indexOf(begin);
  const to = document.indexOf(end);
  if (from < 0 || to < from) throw new Error('README.md: expected the markers errors:begin and errors:end');
  const meanings = meaningsIn(document);
  const rows = Object.entries(errorCodes).map(([code, { phase, retryable }]) => {
    const meaning = meanings.get(code);
    if (meaning === undefined || meaning === '') {
      throw new Error(
        `README.md: error code ${code} has no meaning; add the row | \`${code}\` | ${phase} | ${retryable ? 'yes' : 'no'} | what it means and what to do |`,
      );
    }
    return [`\`${code}\``, phase, retryable ? 'yes' : 'no', meaning];
  });
  const table = [['code', 'phase', 'retry', 'meaning'], ...rows];
  const widths = [0, 1, 2, 3].map((column) => Math.max(...table.map((row) => row[column].length)));
  const line = (cells) => `| ${cells.map((cell, column) => cell.padEnd(widths[column])).join(' | ')} |\n`;
  const body = `${line(table[0])}${line(widths.map((width) => '-'.repeat(width)))}${table.slice(1).map(line).join('')}`;
  return `${document.slice(0, from + begin.length)}\n${body}\n${document.slice(to)}`;
}

function main() {
  const root = dirname(__dirname);
  const typescript = require('typescript');
  const source = readFileSync(join(root, 'lib', 'errors.ts'), 'utf8');
  const { outputText } = typescript.transpileModule(source, {
    compilerOptions: { module: typescript.ModuleKind.CommonJS, target: typescript.ScriptTarget.ES2022 },
  });
  const compiled = { exports: {} };
  new Function('exports', 'require', outputText)(compiled.exports, require);
  const path = join(root, 'README.md');
  writeFileSync(path, withErrorTable(readFileSync(path, 'utf8'), compiled.exports.errorCodes));
}

if (require.main === module) main();

module.exports = { withErrorTable };
