import { PendingQuery } from "src/hooks/pendingQuery";
import { expect, test } from "vitest";

test("changes build on those that the address does not show yet", () => {
  const pending = new PendingQuery();
  expect(pending.changed("/runs", "?dag=a", { sort: "auc" })).toBe("dag=a&sort=auc");
  expect(pending.changed("/runs", "?dag=a", (query) => ({ compare: [...query.keys()] }))).toBe(
    "dag=a&sort=auc&compare=dag&compare=sort",
  );
  pending.settle("dag=a&sort=auc");
  expect(pending.changed("/runs", "?dag=a&sort=auc", { sort: null })).toBe("dag=a&compare=dag&compare=sort");
  pending.settle("dag=a&compare=dag&compare=sort");
  expect(pending.changed("/runs", "?dag=b", { sort: "loss" })).toBe("dag=b&sort=loss");
});

test("what was asked for holds at once, on its page", () => {
  const pending = new PendingQuery();
  pending.changed("/runs", "?dag=a", { sort: "auc" });
  pending.changed("/runs", "?dag=a", { sort: "loss" });
  expect(["dag=a", "dag=a&sort=auc"].map((shown) => pending.at("/runs", shown))).toEqual(
    Array(2).fill("dag=a&sort=loss"),
  );
  expect([pending.at("/data", "dag=a"), pending.at("/runs", "dag=b")]).toEqual(["dag=a", "dag=b"]);
  pending.changed("/runs", "?dag=a", { dag: null, sort: null });
  expect(pending.at("/runs", "dag=a")).toBe("");
});

test("what was asked of a page that one has left does not come to the next page", () => {
  const pending = new PendingQuery();
  pending.changed("/data", "?dag=a", { search: "temp" });
  pending.settle("dag=a"); // of the next page, whose query is that with which the last one began
  expect(pending.changed("/schema", "?dag=a", { type: "FLOAT" })).toBe("dag=a&type=FLOAT");
});
