import { changedTags, ownTags, readTags, writableTags, writeTags } from "src/components/tags";
import { describe, expect, it } from "vitest";

describe("tags", () => {
  it("are read as they are written", () => {
    const tags = { team: "pricing", "a:b": "c: d, e", checked: "" };
    expect(readTags(`${writeTags(tags)}\n\n`)).toEqual(tags);
  });

  it("are sent as what has changed", () => {
    expect(changedTags({ kept: "1", changed: "1", gone: "1" }, { kept: "1", changed: "2", added: "" })).toEqual({
      changed: "2",
      added: "",
      gone: null,
    });
  });

  it("are left out of the lines that would change them", () => {
    const kept = { team: "pricing", checked: "", "a:b": "c: d", url: "https://example.org" };
    const lost = { json: '{\n  "a": 1\n}', "a: b": "c", "done:": "", padded: " x ", "end ": "x", carriage: "a\rb" };
    const writable = writableTags({ ...lost, ...kept });
    expect(writable).toEqual(kept);
    expect(changedTags(writable, readTags(writeTags(writable)))).toEqual({});
  });

  it("are people's own", () => {
    expect(ownTags({ "hops.dag_id": "y", team: "z" })).toEqual({ team: "z" });
  });
});
