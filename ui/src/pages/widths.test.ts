import { type Column, widthsOf } from "src/components/table";
import { columnsFor as modelColumns } from "src/pages/Models/ModelsPage";
import { columnsFor as versionColumns } from "src/pages/Models/VersionTable";
import { pipelineColumns } from "src/pages/Pipelines/columns";
import { columnsOf as runColumns } from "src/pages/Runs/columns";
import { namesOf, type Run } from "src/pages/Runs/figures";
import { makeColumns as schemaColumns } from "src/pages/Schema/FeatureTable";
import { expect, test } from "vitest";

/** What a page of 1280 pixels leaves to a table: without the host's navigation, the margins and the boxes to tick. */
const ROOM = 1280 - 62 - 2 * 24 - 2 - 36;
const NAMES = ["eval_auc", "eval_log_loss", "newest_auc", "newest_log_loss"];
const figures = (prefix: string) => Object.fromEntries(NAMES.map((name) => [`${prefix}${name}`, 0.5]));
const RUNS = ["1", "2"].map((value) => {
  const params = Object.fromEntries(["learning_rate", "epochs", "units", "batch_size"].map((name) => [name, value]));
  return { metrics: figures("evaluation."), params, tags: {}, task_id: value } as unknown as Run;
});
const TABLES: [string, Column<never>[]][] = [
  ["pipelines", pipelineColumns({})],
  ["models", modelColumns("dag")],
  ["versions", versionColumns("dag", "model", [{ metrics: figures("evaluation.") }] as never, true)],
  ["runs", runColumns("dag", namesOf(RUNS), [])],
  ["schema", schemaColumns({} as never, [], new Map())],
];

test.each(TABLES)("the columns of %s fit on a screen of 1280 pixels", (_, columns) => {
  const shown = columns.filter(({ fixed, optional }) => fixed || !optional);
  const widths = widthsOf(shown, ROOM);
  expect(widths.reduce((sum, width) => sum + width, 0)).toBeLessThanOrEqual(ROOM);
});
