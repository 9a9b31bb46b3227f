import { Box, Button, HStack, Text } from "@chakra-ui/react";
import { useMemo } from "react";
import { Tooltip } from "src/components";
import { formatNumber, formatPercent } from "src/format";
import { useTimezone } from "src/host";
import { Section } from "src/pages/Data/dive/Section";
import { type Difference, differences } from "src/pages/Data/dive/summary";
import { textOf } from "src/pages/Data/dive/text";
import type { Rows } from "src/pages/Data/dive/useRows";

const MOST = 10;
const FULL_BAR = 2;

interface Props {
  selected: Uint8Array;
  shown: Uint8Array;
  shownCount: number;
  rows: Rows;
  onClear: () => void;
  /** Opens the first of the selected rows. */
  onOpen: () => void;
}

/** How the selected rows differ from all that are shown: the features that differ most. */
export function SelectionPanel({ selected, shown, shownCount, rows: { columns, whole }, onClear, onOpen }: Props) {
  const both = useMemo(() => selected.map((each, row) => each & (shown[row] as number)), [selected, shown]);
  const count = useMemo(() => both.reduce((sum, each) => sum + each, 0), [both]);
  const found = useMemo(() => differences(columns.values(), both, shown).slice(0, MOST), [columns, both, shown]);
  return (
    <Section
      title="Selection"
      actions={
        <Button size="2xs" variant="ghost" onClick={onClear}>
          Clear
        </Button>
      }
    >
      <HStack fontSize="sm" mb={1} justify="space-between">
        <Text data-dive="selected" aria-live="polite">
          <b>{formatNumber(count)}</b> of {formatNumber(shownCount)} rows (
          {formatPercent(count / Math.max(shownCount, 1))})
        </Text>
        {count > 0 && (
          <Button size="2xs" variant="outline" onClick={onOpen}>
            View rows
          </Button>
        )}
      </HStack>
      {count > 0 && (
        <Box as="table" width="full" fontSize="xs" aria-label="How the selection differs">
          <Box as="thead" color="fg.muted">
            <tr>
              <Box as="th" textAlign="start" fontWeight="normal">
                differs most in
              </Box>
              <Box as="th" textAlign="end" fontWeight="normal">
                selected
              </Box>
              <Box as="th" textAlign="end" fontWeight="normal">
                all
              </Box>
              <Box as="th" width="56px" />
            </tr>
          </Box>
          <tbody>
            {found.map((difference) => (
              <DifferenceRow key={difference.column.name} difference={difference} />
            ))}
          </tbody>
        </Box>
      )}
      {!whole && (
        <Text fontSize="xs" color="fg.muted">
          Loading the other features
        </Text>
      )}
    </Section>
  );
}

function DifferenceRow({ difference }: { difference: Difference }) {
  const { column, value, selected, all, effect } = difference;
  const zone = useTimezone();
  const text = (amount: number) =>
    value !== null
      ? formatPercent(amount)
      : column.role === "time"
        ? textOf(column, amount, zone).slice(0, 10)
        : formatNumber(amount, 4);
  const name = value === null ? column.name : `${column.name} = ${textOf(column, value, zone)}`;
  const words =
    value === null
      ? `Means of ${name}: ${text(selected)} selected, ${text(all)} overall`
      : `Share of ${name}: ${text(selected)} of the selected rows, ${text(all)} of all rows`;
  return (
    <Tooltip content={`${words}; ${formatNumber(effect, 3)} standard deviations apart`}>
      <tr>
        <Box as="td" maxW="120px" truncate py="2px">
          {name}
        </Box>
        <Box as="td" textAlign="end" fontVariantNumeric="tabular-nums" whiteSpace="nowrap">
          {text(selected)}
        </Box>
        <Box as="td" textAlign="end" fontVariantNumeric="tabular-nums" color="fg.muted" whiteSpace="nowrap" ps={1.5}>
          {text(all)}
        </Box>
        <td>
          <EffectBar effect={effect} />
        </td>
      </tr>
    </Tooltip>
  );
}

/** To the right where the selection has more. */
function EffectBar({ effect }: { effect: number }) {
  const share = Math.min(Math.abs(effect) / FULL_BAR, 1) * 50;
  return (
    <Box position="relative" height="8px" ms={2} bg="bg.muted" borderRadius="xs">
      <Box
        position="absolute"
        insetY={0}
        bg={effect > 0 ? "orange.solid" : "blue.solid"}
        style={{ left: `${effect > 0 ? 50 : 50 - share}%`, width: `${share}%` }}
      />
      <Box position="absolute" insetY={0} left="50%" width="1px" bg="border.emphasized" />
    </Box>
  );
}
