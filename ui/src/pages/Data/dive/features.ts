/** The features of a split, and which of them are shown first. */

import type { Schemas } from "src/api/client";
import type { Defaults } from "src/pages/Data/dive/settings";

/** What a pipeline says of an artifact's columns; null where it says nothing. */
export interface Roles {
  label: string | null;
  time: string | null;
  /** Names of the label's classes, by number; none where it has none. */
  classes: readonly string[];
}

/** Reads them of an artifact's properties, as far as the columns are there. */
export function rolesOf(properties: Record<string, unknown>, columns: readonly ColumnType[]): Roles {
  const text = (role: string) => columns.find(({ name }) => name === properties[role])?.name ?? null;
  const classes = Array.isArray(properties.classes) ? properties.classes.map(String) : [];
  return { label: text("label"), time: text("time"), classes };
}

type ColumnType = Schemas["ColumnType"];

/** Two features on the axes, and the label, or else a prediction, as colour. */
export function defaultsOf(columns: readonly ColumnType[], { label, time }: Roles): Defaults {
  const features = columns.filter(({ name, role }) => role !== null && ![label, time].includes(name));
  const real = features.filter(({ type }) => type === "double" || type === "float");
  const numbers = features.filter(({ role }) => role === "number");
  const categories = features.filter(({ role }) => role === "category" || role === "boolean");
  const [x, y] = real.length > 1 ? real : numbers.length > 1 ? numbers : [numbers[0] ?? categories[0]];
  const named = (name: string | null) => columns.find((column) => column.name === name && column.role !== null);
  const predicted = features.find(({ name }) => /^(label|prediction|predicted|probability|score)/i.test(name));
  return {
    x: x?.name ?? "",
    y: y?.name ?? "",
    color: (named(label) ?? predicted ?? categories[0])?.name ?? "",
  };
}
