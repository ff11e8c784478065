/** Builds the plain C++ test program; see cpp-program.js. @returns its path */
export function buildCppProgram(name: string, flags: readonly string[]): string;
