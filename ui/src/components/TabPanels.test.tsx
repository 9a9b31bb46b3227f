import { TabPanels } from "src/components/TabPanels";
import { rendered } from "src/rendered";
import { expect, test } from "vitest";

const TABS = ["serving", "log"].map((name) => ({ name, label: name, content: `what ${name} shows` }));
const shown = (opened: string, loading: boolean) =>
  rendered(<TabPanels tabs={TABS} opened={opened} onOpen={() => {}} loading={loading} />);

test("a tab that may come yet is waited for, and the first stands for one that does not", () => {
  const waiting = shown("segments", true);
  expect(waiting).toContain('aria-busy="true"');
  expect(waiting).not.toContain("what serving shows");
  for (const [opened, loading] of [
    ["segments", false],
    ["serving", true],
  ] as const) {
    expect(shown(opened, loading)).toContain("what serving shows");
    expect(shown(opened, loading)).not.toContain("aria-busy");
  }
});
