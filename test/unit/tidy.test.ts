/**
 * Goal: the tree keeps its own habits. Method: each rule of test/support/tidy-rules.ts first reports a text that breaks
 * it and then nothing of ours; what compares two files (error codes, sources built, entry points) stands here.
 */
import { errorCodes } from '../../lib/errors.js';
import { readProjectFile, sourceFiles } from '../support/source-files.js';
import { tidyRules } from '../support/tidy-rules.js';

const files = sourceFiles();

describe.each(tidyRules)('$title', ({ about, check, bad }) => {
  test('bites', () => {
    expect(about.test(bad.path)).toBe(true);
    expect(check(bad)).not.toEqual([]);
  });

  test('holds', () => {
    const concerned = files.filter(({ path }) => about.test(path));
    expect(concerned.length).toBeGreaterThan(0);
    expect(concerned.flatMap((file) => check(file).map((fault) => `${file.path}: ${fault}`))).toEqual([]);
  });
});

test('the error codes that native code may raise are the same in both languages', () => {
  const list =
    /#define STATE_HANDOFF_ERROR_CODES\(X\)([^]*?)\n\n/.exec(readProjectFile('cuda/core/error_codes.h'))?.[1] ?? '';
  const native = [...list.matchAll(/X\((\w+)\)/g)].map(([, code]) => code);
  const marked = Object.entries(errorCodes).flatMap(([code, entry]) => ('native' in entry ? [code] : []));
  expect(native.length).toBeGreaterThan(0);
  expect(new Set(native).size).toBe(native.length);
  expect([...native].sort()).toEqual([...marked].sort());
});

test('the addon is built from every C++ source of binding, core and transport, and only from sources that exist', () => {
  const listed = [...readProjectFile('binding.gyp').matchAll(/'(cuda\/[\w/]+\.cc)'/g)].map(([, path]) => path);
  const present = files
    .map(({ path }) => path)
    .filter((path) => /^cuda\/(?:binding|core|transport)\/.*\.cc$/.test(path));
  expect([...listed].sort()).toEqual([...present].sort());
});

test('every test file lies where a phase of npm test finds it', () => {
  const misplaced = files
    .map(({ path }) => path)
    .filter((path) => /\.(?:test|spec)\.\w+$/.test(path) && !/^test\/.*\.test\.ts$/.test(path));
  expect(misplaced).toEqual([]);
});

test('the lock file pins every package by version and hash and by no address', () => {
  const lock = JSON.parse(readProjectFile('package-lock.json')) as {
    packages: Record<string, Record<string, unknown>>;
  };
  const packages = Object.entries(lock.packages).filter(([path]) => path !== '');
  expect(packages.length).toBeGreaterThan(100);
  expect(packages.filter(([, entry]) => 'resolved' in entry).map(([path]) => path)).toEqual([]);
  // What a package brings inside its own tarball has no hash of its own.
  expect(
    packages.filter(([, entry]) => !('integrity' in entry) && entry['inBundle'] !== true).map(([path]) => path),
  ).toEqual([]);
  expect(packages.filter(([, { version }]) => !/^\d+\.\d+\.\d+/.test(String(version))).map(([path]) => path)).toEqual(
    [],
  );
});
