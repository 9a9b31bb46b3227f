import { useMemo } from "react";
import { DataTable, type Column as TableColumn } from "src/components";
import { useTimezone } from "src/host";
import { type Column, isMissing } from "src/pages/Data/dive/columns";
import { textOf } from "src/pages/Data/dive/text";

/** Columns that a table shows by itself. */
const MOST_COLUMNS = 24;

interface Props {
  rows: readonly number[];
  columns: ReadonlyMap<string, Column>;
  opened: number | null;
  onOpen: (row: number) => void;
  height: string;
}

/** The same rows as a table: for who cannot see the plot, or wants to read. */
export function RowTable({ rows, columns, opened, onOpen, height }: Props) {
  const zone = useTimezone();
  const shown = useMemo(
    () =>
      [...columns.values()].map(
        (column, index): TableColumn<number> => ({
          key: column.name,
          label: column.name,
          align: column.role === "number" ? "end" : undefined,
          width: column.role === "number" ? 110 : 150,
          optional: index >= MOST_COLUMNS,
          value: (row) => {
            const value = column.values[row] as number;
            return isMissing(column, value) ? null : column.role === "category" ? column.words[value] : value;
          },
          render: (row) => textOf(column, column.values[row] as number, zone),
        }),
      ),
    [columns, zone],
  );
  return (
    <DataTable
      label="Rows"
      name="row-"
      rows={rows}
      columns={shown}
      rowKey={String}
      rowHeight={30}
      maxHeight={height}
      opened={opened === null ? null : String(opened)}
      onOpen={onOpen}
    />
  );
}
