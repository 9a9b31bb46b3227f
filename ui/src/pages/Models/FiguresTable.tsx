import { Table, Text } from "@chakra-ui/react";
import { formatNumber } from "src/format";
import {
  type Directions,
  direction,
  type Figures,
  namesOf,
  numberOf,
  type Split,
  toneOf,
} from "src/pages/Models/figures";
import { type Evaluated, VersionBadge } from "src/pages/Models/versions";
import { metricLabel } from "src/pages/Models/words";

/** The figures of a split: candidate beside champion, and what was gained: more is better, of a loss, too. */
export function FiguresTable({
  split,
  version,
  champion,
  metric,
  higher,
}: {
  split: Split;
  version: Evaluated;
  champion: number | null;
  metric: string;
  higher?: Directions;
}) {
  const names = namesOf(split.candidate).toSorted((a, b) => Number(b === metric) - Number(a === metric));
  return (
    <Table.ScrollArea tabIndex={0} borderWidth={1} borderRadius="md" width="fit-content" maxWidth="full">
      <Table.Root size="sm" width="auto" aria-label="Figures on all rows">
        <Table.Header>
          <Table.Row>
            <Table.ColumnHeader>Metric</Table.ColumnHeader>
            <Table.ColumnHeader textAlign="end">
              <VersionBadge version={version} />
            </Table.ColumnHeader>
            {champion !== null && (
              <>
                <Table.ColumnHeader textAlign="end">
                  <VersionBadge version={champion} />
                </Table.ColumnHeader>
                <Table.ColumnHeader
                  textAlign="end"
                  title="Above zero, the candidate is better; of figures that are neither better nor worse, the difference"
                >
                  Gain
                </Table.ColumnHeader>
              </>
            )}
          </Table.Row>
        </Table.Header>
        <Table.Body fontVariantNumeric="tabular-nums">
          {names.map((name) => (
            <Table.Row key={name}>
              <Table.Cell fontWeight={name === metric ? "semibold" : undefined}>{metricLabel(name)}</Table.Cell>
              <Table.Cell textAlign="end">
                <Value figures={split.candidate} name={name} />
              </Table.Cell>
              {champion !== null && (
                <>
                  <Table.Cell textAlign="end">
                    <Value figures={split.champion} name={name} />
                  </Table.Cell>
                  <Table.Cell textAlign="end">
                    <Gain split={split} name={name} higher={higher} />
                  </Table.Cell>
                </>
              )}
            </Table.Row>
          ))}
        </Table.Body>
      </Table.Root>
    </Table.ScrollArea>
  );
}

function Value({ figures, name }: { figures: Figures | null; name: string }) {
  const low = numberOf(figures, `${name}_low`);
  const high = numberOf(figures, `${name}_high`);
  return (
    <>
      {formatNumber(numberOf(figures, name))}
      {low !== null && high !== null && <Interval low={low} high={high} />}
    </>
  );
}

function Gain({ split, name, higher }: { split: Split; name: string; higher?: Directions }) {
  const candidate = numberOf(split.candidate, name);
  const champion = numberOf(split.champion, name);
  const gain = split.gain?.metric === name ? split.gain : null;
  const sign = direction(name, 1, higher) < 0 ? -1 : 1;
  // Where the champion does not know a class, the two have figures of other rows: only the gain is of the same.
  const sameRows = numberOf(split.candidate, "rows") === numberOf(split.champion, "rows");
  const own =
    candidate === null || champion === null || !sameRows
      ? null
      : sign > 0
        ? candidate - champion
        : champion - candidate;
  const gained = gain?.difference ?? own;
  const isBetter = direction(name, gained === null ? null : sign * gained, higher);
  return (
    <>
      <Text as="span" color={toneOf(isBetter)}>
        {signed(gained)}
      </Text>
      {gain?.low != null && gain.high !== null && <Interval low={gain.low} high={gain.high} sign />}
    </>
  );
}

function Interval({ low, high, sign = false }: { low: number; high: number; sign?: boolean }) {
  const format = sign ? signed : formatNumber;
  return (
    <Text fontSize="xs" color="fg.muted" title="95% interval">
      {format(low)} to {format(high)}
    </Text>
  );
}

/** A gain with its sign: `+0.0477`. */
export function signed(value: number | null): string {
  return value !== null && value > 0 ? `+${formatNumber(value, 3)}` : formatNumber(value, 3);
}
