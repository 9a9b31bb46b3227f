import { TrafficBar } from "src/pages/Models/TrafficBar";
import { rendered } from "src/rendered";
import { expect, test } from "vitest";

/** What the bar says to those who do not see it, and what stands in it. */
function drawn(props: Parameters<typeof TrafficBar>[0]): [label: string | undefined, text: string] {
  const html = rendered(<TrafficBar {...props} />);
  const bar = html.slice(html.indexOf("<div"));
  return [/aria-label="([^"]*)"/.exec(bar)?.[1], bar.replaceAll(/<[^>]*>/g, "|").replaceAll(/\|+/g, "|")];
}

const SHARES = [
  { version: 3, percent: 25 },
  { version: 2, percent: 75 },
  { version: 1, percent: 0 },
];

test("versions stand in order, those without traffic are left out, and a thin bar has no labels", () => {
  expect(drawn({ shares: SHARES })).toEqual(["Traffic: version 2 75%, version 3 25%", "|v2 75%|v3 25%|"]);
  expect(drawn({ shares: SHARES, size: "thin", words: "v2 75%" })).toEqual(["Traffic: v2 75%", "|"]);
});

test("no traffic is said", () => {
  expect(drawn({ shares: [] })).toEqual(["Traffic: no traffic", "|nothing serves|"]);
});
