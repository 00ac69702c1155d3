/** Carries out requests from its standard input, with the fetch that Node brings. */
import { createInterface } from "node:readline";

for await (const line of createInterface({ input: process.stdin })) {
  const [method, url, framing, text] = line.split("\t");
  const body = !text ? undefined : framing === "chunked" ? new Blob([text]).stream() : text;
  const answer = await fetch(url, { method, body, duplex: "half" });
  console.log(`${answer.status}\t${await answer.text()}`);
}
