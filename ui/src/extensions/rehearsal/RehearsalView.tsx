import { HStack, SimpleGrid, Stack, Text } from "@chakra-ui/react";
import {
  AppLink,
  airflowDagPath,
  Breakable,
  CodeBlock,
  formatDuration,
  formatList,
  formatNumber,
  formatTime,
  LinesAlert,
  Notice,
  Numbers,
  Part,
  PlainTable,
  plural,
  type Schemas,
  ShowMore,
  StateBadge,
  stateInWords,
  Time,
  useQuery,
  useTimezone,
  VERDICT_STATES,
} from "airflow-hops";
import { useCallback, useState } from "react";
import { FaultDrawer } from "src/extensions/rehearsal/FaultDrawer";
import { FaultTable } from "src/extensions/rehearsal/FaultTable";
import {
  DOUBTS,
  type Feature,
  keyOf,
  type Report,
  shareInWords,
  slipsInWords,
  spanInWords,
} from "src/extensions/rehearsal/rehearsal";

type MadeRehearsal = Schemas["MadeRehearsal"];

/** One rehearsal: what would not be noticed first, then each fault, and what the monitor says of unchanged rows. */
export function RehearsalView({ made }: { made: MadeRehearsal }) {
  const { report } = made;
  const [query, change] = useQuery();
  const open = useCallback((key: string | null) => change({ change: key }, { push: key !== null }), [change]);
  const opened = report.faults.find((each) => keyOf(each) === query.get("change"));
  const slips = slipsInWords(report);
  return (
    <Stack gap={4}>
      <Facts made={made} />
      {report.faults.length > 0 && (
        <Notice
          status={slips.missed ? "warning" : "info"}
          title={
            slips.missed
              ? `This monitor would not notice ${slips.missed}`
              : "This monitor would notice each fault, if it is large enough."
          }
          alignItems="flex-start"
        >
          {slips.found}
        </Notice>
      )}
      <Doubts features={report.features.filter(({ state }) => state in DOUBTS)} />
      <Part boxed title="Faults" note="Choose one for what is found at each size.">
        <FaultTable report={report} opened={opened && keyOf(opened)} onOpen={open} />
      </Part>
      <Part boxed title="Unchanged windows" note={pastInWords(report)}>
        <Windows windows={report.windows} />
      </Part>
      <LinesAlert title="Not rehearsed" lines={report.notes} />
      {opened && <FaultDrawer report={report} fault={opened} onClose={() => open(null)} />}
    </Stack>
  );
}

const pastInWords = ({ windows, requests }: Report): string =>
  `No fault was planted here: over these ${plural(windows.length, "window")}, this policy would have requested ` +
  `${requests === 0 ? "no retraining" : plural(requests, "retraining")}.`;

function Facts({ made: { made, task, report } }: { made: MadeRehearsal }) {
  const rows = report.rows === "captured" ? "captured requests" : "held-out training rows";
  const cost = report.cost_core_s === null ? "unknown" : `${formatDuration(report.cost_core_s)} of CPU time`;
  const again = <AppLink to={airflowDagPath(task.dag_id)}>{task.dag_id}: trigger it to rehearse again</AppLink>;
  return (
    <Stack gap={2}>
      <Text fontSize="sm" color="fg.muted" overflowWrap="anywhere">
        Version {report.version} · {plural(report.windows.length, "window")} of {spanInWords(report.every_s)} of {rows}{" "}
        · made <Time at={made} /> by {task.task_id} of {task.dag_id === "cli" ? "the command line" : again}
      </Text>
      <Numbers
        fontSize="sm"
        of={[
          ["false alarms in unchanged windows", shareInWords(report.false_alarms)],
          ["retrainings requested by them", formatNumber(report.requests)],
          ["a retraining costs", cost],
        ]}
      />
    </Stack>
  );
}

const FEW = 6;

/** The features whose comparison is of little use as it is, with what to change. */
function Doubts({ features }: { features: readonly Feature[] }) {
  const [shown, setShown] = useState(FEW);
  return (
    features.length > 0 && (
      <Part boxed title="Features that need another threshold or measure">
        <SimpleGrid columns={{ base: 1, lg: 2 }} gap={4}>
          {features.slice(0, shown).map((feature) => (
            <Doubt key={feature.name} feature={feature} />
          ))}
        </SimpleGrid>
        <ShowMore shown={shown} of={features.length} onMore={setShown} />
      </Part>
    )
  );
}

function Doubt({ feature: { name, state, false_alarms, because, advice } }: { feature: Feature }) {
  const doubt = DOUBTS[state];
  return (
    <Stack as="section" aria-label={name} gap={1} fontSize="sm" minW={0}>
      <HStack gap={2} wrap="wrap">
        <StateBadge state={doubt?.look}>{state}</StateBadge>
        <Text fontWeight="semibold" overflowWrap="anywhere">
          <Breakable name={name} />
        </Text>
      </HStack>
      <Text>
        {doubt?.words} {because}
      </Text>
      <Text color="fg.muted">Called drifted in {shareInWords(false_alarms)} of the unchanged windows.</Text>
      {advice && <CodeBlock code={advice} label={`arguments for ${name}`} />}
    </Stack>
  );
}

/** What the monitor and its policy say of the windows in which nothing was planted, the newest first. */
function Windows({ windows }: { windows: Report["windows"] }) {
  const zone = useTimezone();
  const rows = windows.map((each, place) => ({ ...each, place })).toReversed();
  return (
    <PlainTable<(typeof rows)[number]>
      label="Unchanged windows"
      dense
      maxHeight="45vh"
      rows={rows}
      rowKey={({ place }) => place}
      columns={[
        {
          label: "From",
          cell: ({ start, place }) => (start ? formatTime(start, zone).slice(0, 16) : `window ${place + 1}`),
        },
        { label: "Rows", end: true, cell: (each) => formatNumber(each.rows) },
        {
          label: "Verdict",
          cell: ({ verdict }) => <StateBadge state={VERDICT_STATES[verdict]}>{stateInWords(verdict)}</StateBadge>,
        },
        { label: "Called drifted", cell: ({ drifted }) => formatList(drifted) || "–" },
        {
          label: "The policy",
          cell: ({ requested, reason }) => `${requested ? "requests a retraining" : "no retraining"}: ${reason}`,
        },
      ]}
    />
  );
}
