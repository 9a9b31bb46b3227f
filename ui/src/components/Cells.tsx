import { memo, type ReactNode } from "react";
import type { Column } from "src/components/table";

const TO_THE_END = { textAlign: "end", fontVariantNumeric: "tabular-nums" } as const;

interface CellsProps<Row> {
  row: Row;
  columns: readonly Column<Row>[];
}

function CellsOf<Row>({ row, columns }: CellsProps<Row>): ReactNode {
  return columns.map(({ key, align, render }) => (
    <td key={key} style={align === "end" ? TO_THE_END : undefined}>
      {render(row)}
    </td>
  ));
}

/** The cells of a row; drawn again only for another row or other columns. */
export const Cells = memo(CellsOf) as typeof CellsOf;
