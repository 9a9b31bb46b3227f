import { linksOf, rendered } from "src/rendered";
import { NotFound } from "src/shell/NotFound";
import { expect, test } from "vitest";

function found(address: string): string[] {
  const html = rendered(<NotFound />, address);
  expect(html).toContain("There is no page /plugin/hops/nothing");
  expect(html).not.toContain("above");
  return linksOf(html);
}

test("an unknown page leads to all pipelines", () => {
  expect(found("/plugin/hops/nothing")).toEqual(["/plugin/hops"]);
});

test("an unknown page of a pipeline leads to its overview, too", () => {
  expect(found("/plugin/hops/nothing?dag=churn")).toEqual(["/plugin/hops/overview?dag=churn", "/plugin/hops"]);
});
