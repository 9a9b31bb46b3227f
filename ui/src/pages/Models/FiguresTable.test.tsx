import { ChakraProvider, defaultSystem } from "@chakra-ui/react";
import { renderToStaticMarkup } from "react-dom/server";
import { FiguresTable } from "src/pages/Models/FiguresTable";
import { expect, test } from "vitest";

const SPLIT = {
  name: "eval",
  rows: 100,
  candidate: { rows: 100, auc: 0.75, auc_low: 0.7, auc_high: 0.8, f1: 0.512, log_loss: 0.5, reason: null },
  champion: { rows: 100, auc: 0.7, auc_low: 0.65, auc_high: 0.75, f1: 0.5, log_loss: 0.5, reason: null },
  gain: null,
  slices: {},
};

/** The cells of each row, as text. */
function rowsOf(champion: number | null): string[][] {
  const html = renderToStaticMarkup(
    <ChakraProvider value={defaultSystem}>
      <FiguresTable split={SPLIT} version={2} champion={champion} metric="log_loss" />
    </ChakraProvider>,
  );
  const cellsOf = (row: string) => row.split("<td").slice(1);
  const textOf = (cell: string) => `<td${cell}`.replaceAll(/<style.*?<\/style>/gs, "").replaceAll(/<[^>]*>?/g, "");
  const rows = html.slice(html.indexOf("<tbody")).split("<tr").slice(1);
  return rows.map((row) => cellsOf(row).map(textOf));
}

test("every figure of an evaluation is a row, the one that decides first", () => {
  expect(rowsOf(1)).toEqual([
    ["log loss", "0.5", "0.5", "0"],
    ["AUC", "0.750.7 to 0.8", "0.70.65 to 0.75", "+0.05"],
    ["f1", "0.512", "0.5", "+0.012"],
  ]);
});

test("without a champion, there is nothing to compare with", () => {
  expect(rowsOf(null)).toEqual([
    ["log loss", "0.5"],
    ["AUC", "0.750.7 to 0.8"],
    ["f1", "0.512"],
  ]);
});
