import { Box, CloseButton, HStack, IconButton, Text } from "@chakra-ui/react";
import { LuArrowLeft, LuArrowRight } from "react-icons/lu";
import { CopyButton, LoadingRows, QueryView } from "src/components";
import { formatNumber } from "src/format";
import { useTimezone } from "src/host";
import { type Column, factsOf, valueAt } from "src/pages/Data/dive/columns";
import { Section } from "src/pages/Data/dive/Section";
import { textOf } from "src/pages/Data/dive/text";
import { type Rows, useRow } from "src/pages/Data/dive/useRows";

interface Props {
  row: number;
  rows: Rows;
  /** Which of the rows that one goes through it is, from 0; -1 where it is none of them. */
  place: number;
  count: number;
  onStep: (by: number) => void;
  onClose: () => void;
}

/** All values of one row, each with where it lies in the range of its feature. */
export function RowPanel({ row, rows, place, count, onStep, onClose }: Props) {
  const answer = useRow(rows.source, row);
  const isThere = answer.data?.row === row;
  const values = answer.data?.columns.map((column) => [column.name, valueAt(column, 0)]) ?? [];
  return (
    <Section
      title={place < 0 ? "Row, not currently shown" : `Row ${formatNumber(place + 1)} of ${formatNumber(count)}`}
      actions={
        <HStack gap={0}>
          {isThere && (
            <CopyButton text={JSON.stringify(Object.fromEntries(values), null, 2)} label="Copy the row as JSON" />
          )}
          <IconButton
            size="2xs"
            variant="ghost"
            aria-label="Previous row"
            title="Previous row"
            onClick={() => onStep(-1)}
          >
            <LuArrowLeft />
          </IconButton>
          <IconButton size="2xs" variant="ghost" aria-label="Next row" title="Next row" onClick={() => onStep(1)}>
            <LuArrowRight />
          </IconButton>
          <CloseButton size="2xs" aria-label="Close the row" onClick={onClose} />
        </HStack>
      }
    >
      <QueryView query={answer} loading={<LoadingRows rows={8} />}>
        {({ columns }) => (
          <Box as="dl" fontSize="xs" data-dive="row" opacity={isThere ? 1 : 0.5}>
            {columns.map((column) => (
              <Value key={column.name} column={column} among={rows.columns.get(column.name)} />
            ))}
          </Box>
        )}
      </QueryView>
    </Section>
  );
}

/** The only value of a column, and where it lies among those of all rows, as far as they have come. */
function Value({ column, among }: { column: Column; among: Column | undefined }) {
  const value = column.values[0] ?? Number.NaN;
  const text = textOf(column, value, useTimezone());
  return (
    <HStack gap={2} py="2px" borderBottomWidth={1} borderColor="border.muted">
      <Text as="dt" color="fg.muted" flex="0 0 42%" truncate title={column.name}>
        {column.name}
      </Text>
      <Text
        as="dd"
        flex={1}
        truncate
        title={text}
        color={text === "missing" ? "fg.muted" : undefined}
        fontVariantNumeric="tabular-nums"
      >
        {text}
      </Text>
      {among && <WhereInRange column={among} value={value} />}
    </HStack>
  );
}

function WhereInRange({ column, value }: { column: Column; value: number }) {
  if (column.role === "category" || Number.isNaN(value)) {
    return null;
  }
  const { min, max } = factsOf(column);
  const share = max > min ? (value - min) / (max - min) : 0.5;
  return (
    <Box width="40px" height="6px" bg="bg.muted" borderRadius="xs" position="relative" flexShrink={0} aria-hidden>
      <Box
        position="absolute"
        insetY={0}
        width="3px"
        bg="brand.solid"
        style={{ left: `calc(${share * 100}% - 1.5px)` }}
      />
    </Box>
  );
}
