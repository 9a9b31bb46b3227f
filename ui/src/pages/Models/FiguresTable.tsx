import { Box, Text } from "@chakra-ui/react";
import { PlainTable } from "src/components";
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
import { gainInWords, metricLabel } from "src/pages/Models/words";

interface Props {
  split: Split;
  version: Evaluated;
  champion: number | null;
  metric: string;
  higher?: Directions;
  /** Whether only what is better or worse is shown. */
  brief?: boolean;
}

/** The figures of a split: candidate beside champion, and what was gained: more is better, of a loss, too. */
export function FiguresTable({ split, version, champion, metric, higher, brief = false }: Props) {
  const all = namesOf(split.candidate).filter((name) => !brief || direction(name, 1, higher) !== 0);
  const names = all.toSorted((a, b) => Number(b === metric) - Number(a === metric));
  const heading = (name: string) => metricLabel(name) + (direction(name, 1, higher) < 0 ? " ↓" : "");
  return (
    <Box borderWidth={1} borderRadius="md" width="fit-content" maxWidth="full">
      <PlainTable
        label="Figures on all rows"
        width="auto"
        whiteSpace="normal"
        rows={names}
        rowKey={(name) => name}
        columns={[
          {
            label: "Metric",
            help: "↓ where less is better",
            cell: (name) => (name === metric ? <b>{heading(name)}</b> : heading(name)),
          },
          {
            label: <VersionBadge version={version} />,
            end: true,
            cell: (name) => <Value figures={split.candidate} name={name} />,
          },
          ...(champion === null
            ? []
            : [
                {
                  label: <VersionBadge version={champion} />,
                  end: true,
                  cell: (name: string) => <Value figures={split.champion} name={name} />,
                },
                {
                  label: "Gain",
                  help: "Above zero, the candidate is better; of figures that are neither better nor worse, the difference",
                  end: true,
                  cell: (name: string) => <Gain split={split} name={name} higher={higher} />,
                },
              ]),
        ]}
      />
    </Box>
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
        {gainInWords(gained, isBetter)}
      </Text>
      {gain?.low != null && gain.high !== null && <Interval low={gain.low} high={gain.high} sign />}
    </>
  );
}

function Interval({ low, high, sign = false }: { low: number; high: number; sign?: boolean }) {
  const format = sign ? signed : formatNumber;
  return (
    <Text fontSize="xs" color="fg.muted" whiteSpace="nowrap" title="95% interval">
      {format(low)} to {format(high)}
    </Text>
  );
}

/** A gain with its sign: `+0.0477`. */
export function signed(value: number | null): string {
  return value !== null && value > 0 ? `+${formatNumber(value, 3)}` : formatNumber(value, 3);
}
