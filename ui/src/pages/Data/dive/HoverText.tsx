import { HStack, Text } from "@chakra-ui/react";
import { useTimezone } from "src/host";
import { featuresOf, type Placement } from "src/pages/Data/dive/settings";
import { textOf } from "src/pages/Data/dive/text";
import type { Rows } from "src/pages/Data/dive/useRows";

/** A row's values of the features that the plot shows. */
export function HoverText({ row, rows, placement }: { row: number; rows: Rows; placement: Placement }) {
  const zone = useTimezone();
  const { columns } = rows;
  const shown = featuresOf({ ...placement, filters: [] }).flatMap((name) => columns.get(name) ?? []);
  return (
    <>
      {shown.map((column) => (
        <HStack key={column.name} gap={3} justify="space-between">
          <Text color="fg.muted" truncate>
            {column.name}
          </Text>
          <Text fontVariantNumeric="tabular-nums" truncate>
            {textOf(column, column.values[row] ?? Number.NaN, zone)}
          </Text>
        </HStack>
      ))}
    </>
  );
}
