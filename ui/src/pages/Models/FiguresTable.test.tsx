import { FiguresTable } from "src/pages/Models/FiguresTable";
import { ResidualBars } from "src/pages/Models/ResidualBars";
import { rendered } from "src/rendered";
import { expect, test } from "vitest";

const SPLIT = {
  name: "eval",
  rows: 100,
  candidate: { rows: 100, auc: 0.75, auc_low: 0.7, auc_high: 0.8, f1: 0.512, log_loss: 0.5, reason: null },
  champion: { rows: 100, auc: 0.7, auc_low: 0.65, auc_high: 0.75, f1: 0.5, log_loss: 0.5, reason: null },
  gain: null,
  value: null,
  slices: {},
};

/** The cells of each row, as text. */
function rowsOf(champion: number | null, split: Parameters<typeof FiguresTable>[0]["split"] = SPLIT): string[][] {
  const html = rendered(<FiguresTable split={split} version={2} champion={champion} metric="log_loss" />);
  const cellsOf = (row: string) => row.split("<td").slice(1);
  const textOf = (cell: string) => `<td${cell}`.replaceAll(/<[^>]*>?/g, "");
  const rows = html.slice(html.indexOf("<tbody")).split("<tr").slice(1);
  return rows.map((row) => cellsOf(row).map(textOf));
}

test("every figure of an evaluation is a row, the one that decides first", () => {
  expect(rowsOf(1)).toEqual([
    ["log loss ↓", "0.5", "0.5", "0"],
    ["AUC", "0.750.7 to 0.8", "0.70.65 to 0.75", "+0.05 better"],
    ["F1", "0.512", "0.5", "+0.012"],
  ]);
});

test("a gain in a loss is above zero, as on all pages", () => {
  const gain = { metric: "log_loss", difference: 0.02, low: 0.01, high: 0.03 };
  expect(rowsOf(1, { ...SPLIT, gain })[0]).toEqual(["log loss ↓", "0.5", "0.5", "+0.02 better+0.01 to +0.03"]);
});

test("figures of other rows have no difference", () => {
  const champion = { ...SPLIT.champion, rows: 60 };
  expect(rowsOf(1, { ...SPLIT, champion }).map((cells) => cells.at(-1))).toEqual(["–", "–", "–"]);
});

test("residuals of each version are drawn to the same scale, and said", () => {
  const figures = (far: number) => ({ residual_quantiles: { "5": -far, "25": -1, "50": 0, "75": 1, "95": far } });
  const html = rendered(
    <ResidualBars
      versions={[
        [2, figures(5)],
        [1, figures(10)],
      ]}
      label="price"
    />,
  );
  expect(html).toContain("Residuals of version 2: 5%: -5, 25%: -1, 50%: 0, 75%: 1, 95%: 5");
  expect([...html.matchAll(/<line x1="([\d.]+)" x2="([\d.]+)" y1="13"/g)].map((at) => at.slice(1).map(Number))).toEqual(
    [
      [108, 312],
      [6, 414],
    ],
  );
  expect(html).toContain("price less prediction, up to ±10");
});

test("without a champion, there is nothing to compare with", () => {
  expect(rowsOf(null)).toEqual([
    ["log loss ↓", "0.5"],
    ["AUC", "0.750.7 to 0.8"],
    ["F1", "0.512"],
  ]);
});
