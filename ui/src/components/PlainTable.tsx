import { Table, type TableRootProps } from "@chakra-ui/react";
import type { Key, ReactNode } from "react";

/** A column: its heading, and what a row has there. Numbers stand at the end. */
export interface PlainColumn<Row> {
  label: ReactNode;
  cell: (row: Row) => ReactNode;
  end?: boolean;
  /** More words on the heading. */
  help?: string;
}

/** Few rows, as they come: what a {@link DataTable} sorts, hides and draws in part is of no use to them. */
export function PlainTable<Row>({
  label,
  rows,
  rowKey,
  columns,
  rowTitle,
  dense = false,
  maxHeight,
  ...rest
}: {
  label: string;
  rows: readonly Row[];
  rowKey: (row: Row) => Key;
  columns: readonly PlainColumn<Row>[];
  rowTitle?: (row: Row) => string;
  dense?: boolean;
  /** CSS height beyond which the rows scroll below the heading. */
  maxHeight?: string;
} & Pick<TableRootProps, "width" | "maxW" | "mt" | "whiteSpace">) {
  return (
    <Table.ScrollArea tabIndex={0} maxHeight={maxHeight}>
      <Table.Root size="sm" aria-label={label} stickyHeader={maxHeight !== undefined} {...rest}>
        <Table.Header>
          <Table.Row>
            {columns.map(({ label: heading, end, help }, place) => (
              // biome-ignore lint/suspicious/noArrayIndexKey: a column is its place
              <Table.ColumnHeader key={place} textAlign={end ? "end" : undefined} title={help}>
                {heading}
              </Table.ColumnHeader>
            ))}
          </Table.Row>
        </Table.Header>
        <Table.Body fontVariantNumeric="tabular-nums">
          {rows.map((row) => (
            <Table.Row key={rowKey(row)} title={rowTitle?.(row)}>
              {columns.map(({ cell, end }, place) => (
                <Table.Cell
                  // biome-ignore lint/suspicious/noArrayIndexKey: a column is its place
                  key={place}
                  py={dense ? 1 : undefined}
                  textAlign={end ? "end" : undefined}
                  verticalAlign="top"
                >
                  {cell(row)}
                </Table.Cell>
              ))}
            </Table.Row>
          ))}
        </Table.Body>
      </Table.Root>
    </Table.ScrollArea>
  );
}
