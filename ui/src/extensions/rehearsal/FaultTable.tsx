import { Box, HStack, Text } from "@chakra-ui/react";
import {
  CAUSE_LABELS,
  type Column,
  column,
  countOf,
  DataTable,
  ERROR,
  FilterBar,
  plural,
  SearchInput,
  stateInWords,
  Toggle,
  useQueryFlag,
  useQueryParam,
} from "airflow-hops";
import { type ReactNode, useMemo } from "react";
import { LuEyeOff } from "react-icons/lu";
import {
  afterInWords,
  byEffect,
  effectInWords,
  type Fault,
  keyOf,
  kindOf,
  lossInWords,
  type Report,
  rangeInWords,
  slipping,
  subjectOf,
} from "src/extensions/rehearsal/rehearsal";

interface Props {
  report: Report;
  opened: string | undefined;
  onOpen: (key: string) => void;
}

/** Every fault: the smallest change that is found, when, as what, what follows, and what slips through. */
export function FaultTable({ report, opened, onOpen }: Props) {
  const [search] = useQueryParam("subject");
  const [onlyMissed, setOnlyMissed] = useQueryFlag("missed");
  const columns = useMemo(() => columnsFor(report), [report]);
  const ordered = useMemo(() => byEffect(report.faults), [report]);
  const missed = ordered.filter(({ size }) => size === null).length;
  const rows = useMemo(() => {
    const matches = (each: Fault) => `${subjectOf(each)} ${kindOf(each)}`.toLowerCase().includes(search.toLowerCase());
    return ordered.filter((each) => matches(each) && (!onlyMissed || each.size === null));
  }, [ordered, search, onlyMissed]);
  return (
    <DataTable
      label="Faults"
      name="faults"
      rows={rows}
      rowKey={keyOf}
      columns={columns}
      initialSort={{ column: "slips", descending: true }}
      rowHeight={56}
      cards
      onOpen={(fault) => onOpen(keyOf(fault))}
      opened={opened}
      toolbar={
        <FilterBar summary={countOf(rows.length, ordered.length, "fault")}>
          <SearchInput name="subject" placeholder="Search features and faults" />
          <Toggle
            label={`Only not found (${missed})`}
            checked={onlyMissed}
            disabled={missed === 0 && !onlyMissed}
            onChange={setOnlyMissed}
          />
        </FilterBar>
      }
    />
  );
}

/** The cause that the monitor names, or else its verdict. */
export const calledOf = ({ cause, verdict }: Fault): string =>
  cause ? (CAUSE_LABELS[cause] ?? cause.replaceAll("_", " ")) : verdict ? stateInWords(verdict) : "–";

export function columnsFor(report: Report): Column<Fault>[] {
  return [
    column("feature", "Feature", {
      fixed: true,
      width: 160,
      minWidth: 140,
      value: subjectOf,
      render: (fault) => <Lines first={subjectOf(fault)} second={kindOf(fault)} />,
    }),
    column("size", "Smallest found", {
      width: 340,
      minWidth: 315,
      help: "The smallest change that is found in 80% of the tries, with its 95% interval",
      render: (fault) => <Smallest fault={fault} />,
    }),
    column("after", "After", {
      width: 115,
      minWidth: 100,
      help: "How long until the monitor says so, in 80% of the starts",
      value: ({ after }) => after,
      render: (fault) =>
        fault.size === null ? (
          "–"
        ) : (
          <Lines
            first={afterInWords(fault, report)}
            second={fault.after === null ? "" : plural(fault.after, "comparison")}
          />
        ),
    }),
    column("called", "Called", { width: 125, minWidth: 120, value: calledOf }),
    column("retraining", "Retraining", {
      width: 160,
      minWidth: 125,
      value: ({ retraining }) => Number(retraining),
      render: ({ retraining, why }) => <Lines first={retraining ? "yes" : "no"} second={why} />,
    }),
    column("slips", "What slips through", {
      width: 290,
      minWidth: 270,
      help: "The mean change of a prediction by the largest change that stays unnoticed, and what it costs of the metric",
      descendingFirst: true,
      value: slipping,
      render: (fault) => <Lines first={effectInWords(fault, report)} second={lossInWords(fault, report)} />,
    }),
  ];
}

function Smallest({ fault }: { fault: Fault }) {
  if (fault.size !== null) {
    return <Lines first={fault.words} second={rangeInWords(fault)} />;
  }
  const mark = (
    <HStack gap={1} fontWeight="semibold" color={ERROR}>
      <LuEyeOff aria-hidden /> not found
    </HStack>
  );
  return <Lines first={mark} second={`up to ${fault.words}`} />;
}

const CUT = { whiteSpace: { base: "normal", md: "nowrap" }, overflow: "hidden", textOverflow: "ellipsis" } as const;

/** The two lines of a cell, which on a phone, where rows are cards, wrap. */
export function Lines({ first, second }: { first: ReactNode; second: string }) {
  return (
    <Box>
      <Box {...CUT}>{first}</Box>
      <Text fontSize="xs" color="fg.muted" {...CUT}>
        {second}
      </Text>
    </Box>
  );
}
