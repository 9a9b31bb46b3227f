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

/** The figures of a split: candidate beside champion, and their difference. */
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
                <Table.ColumnHeader textAlign="end">Difference</Table.ColumnHeader>
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
                    <Difference split={split} name={name} higher={higher} />
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

function Difference({ split, name, higher }: { split: Split; name: string; higher?: Directions }) {
  const candidate = numberOf(split.candidate, name);
  const champion = numberOf(split.champion, name);
  const gain = split.gain?.metric === name ? split.gain : null;
  // A gain is more where the candidate is better: of a loss, where it has less of it.
  const sign = direction(name, 1, higher) < 0 ? -1 : 1;
  // Where the champion does not know a class, the two have figures of other rows: only the gain is of the same.
  const sameRows = numberOf(split.candidate, "rows") === numberOf(split.champion, "rows");
  const own = candidate === null || champion === null || !sameRows ? null : candidate - champion;
  const difference = gain?.difference == null ? own : sign * gain.difference;
  const ends =
    gain?.low == null || gain.high === null ? null : [sign * gain.low, sign * gain.high].sort((a, b) => a - b);
  return (
    <>
      <Text as="span" color={toneOf(direction(name, difference, higher))}>
        {signed(difference)}
      </Text>
      {ends && <Interval low={ends[0] as number} high={ends[1] as number} sign />}
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

/** A difference with its sign: `+0.0477`. */
export function signed(value: number | null): string {
  return value !== null && value > 0 ? `+${formatNumber(value, 3)}` : formatNumber(value, 3);
}
