import { HStack, Text } from "@chakra-ui/react";
import { useEffect, useState } from "react";
import { useTimezone } from "src/host";
import type { Roles } from "src/pages/Data/dive/features";
import { featuresOf, type Placement } from "src/pages/Data/dive/settings";
import { textOf } from "src/pages/Data/dive/text";
import { type Rows, useRow } from "src/pages/Data/dive/useRows";

/** So long the pointer rests on a row until its key is asked for. */
const REST_MS = 100;

/** A row's key, and its values of the features that the plot shows. */
export function HoverText({
  row,
  rows,
  placement,
  roles,
}: {
  row: number;
  rows: Rows;
  placement: Placement;
  roles: Roles;
}) {
  const zone = useTimezone();
  const { columns, source } = rows;
  const [rested, setRested] = useState<number | null>(null);
  useEffect(() => {
    const timer = roles.key === null ? 0 : window.setTimeout(() => setRested(row), REST_MS);
    return () => window.clearTimeout(timer);
  }, [row, roles]);
  const answer = useRow(source, rested, roles.key ?? undefined).data;
  const [key] = answer?.row === row ? answer.columns : [];
  const shown = featuresOf({ ...placement, filters: [] }).flatMap((name) => columns.get(name) ?? []);
  return (
    <>
      {key && (
        <Text fontWeight="semibold" mb={0.5} truncate>
          {textOf(key, key.values[0] ?? Number.NaN, zone)}
        </Text>
      )}
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
