/**
 * Replays transcripts in Node, and prints a line of JSON for each result.
 *
 *     node test/conformance/node.js [--controls] [--client src/index.js] FILE.jsonl …
 *
 * With `--controls` the files are altered, and `isNoticed` says whether the replay fails. Without
 * files: all those of clients/conformance. Exits with 1 when anything deviates, or nothing is
 * noticed.
 */

import { readFile, readdir } from "node:fs/promises";
import { basename, join, resolve } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { parseArgs } from "node:util";

import { controlled, replayed } from "./run.js";

const HERE = fileURLToPath(new URL(".", import.meta.url));
const TRANSCRIPTS = join(HERE, "../../../conformance");
const CLIENT = join(HERE, "../../src/index.js");

const { values, positionals } = parseArgs({
  options: {
    controls: { type: "boolean", default: false },
    client: { type: "string", default: CLIENT },
  },
  allowPositionals: true,
});
const tocsin = await import(pathToFileURL(resolve(values.client)).href);
const files = positionals.length ? positionals : await all();
for (const file of files) {
  const text = await readFile(file, "utf8");
  const name = basename(file, ".jsonl");
  for (const result of await (values.controls ? controlled : replayed)(name, text, tocsin)) {
    console.log(JSON.stringify(result));
    if (result.why || result.isNoticed === false) process.exitCode = 1;
  }
}

async function all() {
  const found = await readdir(TRANSCRIPTS);
  return found.filter((name) => name.endsWith(".jsonl")).map((name) => join(TRANSCRIPTS, name));
}
