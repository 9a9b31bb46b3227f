import { Table, Text } from "@chakra-ui/react";
import type { Schemas } from "src/api/client";
import { formatNumber } from "src/format";
import { direction, type Figures, namesOf, numberOf, toneOf } from "src/pages/Models/figures";
import { VersionBadge } from "src/pages/Models/versions";
import { metricLabel } from "src/pages/Models/words";

/** The figures of a split: candidate beside champion, and their difference. */
export function FiguresTable({
  split,
  version,
  champion,
  metric,
}: {
  split: Schemas["SplitEvaluation"];
  version: number;
  champion: number | null;
  metric: string;
}) {
  const names = namesOf(split.candidate).toSorted((a, b) => Number(b === metric) - Number(a === metric));
  return (
    <Table.ScrollArea borderWidth={1} borderRadius="md">
      <Table.Root size="sm" aria-label="Figures on all rows">
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
                    <Difference split={split} name={name} />
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

function Difference({ split, name }: { split: Schemas["SplitEvaluation"]; name: string }) {
  const candidate = numberOf(split.candidate, name);
  const champion = numberOf(split.champion, name);
  const difference = candidate === null || champion === null ? null : candidate - champion;
  const gain = split.gain?.metric === name ? split.gain : null;
  return (
    <>
      <Text as="span" color={toneOf(direction(name, difference))}>
        {signed(difference)}
      </Text>
      {gain && gain.low !== null && gain.high !== null && <Interval low={gain.low} high={gain.high} sign />}
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
