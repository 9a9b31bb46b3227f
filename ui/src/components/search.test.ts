import { follow } from "src/components/search";
import { expect, test } from "vitest";

const typed = { typed: "te", known: "", asked: ["t"] };

test("what is typed while the address takes up its beginning stays", () => {
  expect(follow(typed, "")).toBe(typed);
  expect(follow(typed, "t")).toEqual({ typed: "te", known: "t", asked: [] });
  expect(follow({ ...typed, asked: ["t", "te"] }, "t")).toEqual({ typed: "te", known: "t", asked: ["te"] });
  expect(follow({ ...typed, asked: ["t", "te"] }, "te")).toEqual({ typed: "te", known: "te", asked: [] });
});

test("what comes from outside is what is searched for", () => {
  expect(follow(typed, "other")).toEqual({ typed: "other", known: "other", asked: [] });
  const taken = { typed: "te", known: "te", asked: [] };
  expect(follow(follow(taken, ""), "te")).toEqual(taken);
});
