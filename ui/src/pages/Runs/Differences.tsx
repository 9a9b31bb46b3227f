import { Box, Table, Text } from "@chakra-ui/react";
import { useQueries } from "@tanstack/react-query";
import type { ReactNode } from "react";
import { LuTrophy } from "react-icons/lu";
import { api } from "src/api/client";
import { AppLink, Breakable, ErrorAlert, Toggle } from "src/components";
import { formatDuration, formatNumber } from "src/format";
import { useQueryFlag } from "src/hooks/useQueryState";
import { isLoss, metricHeading } from "src/pages/Models/words";
import { durationOf, labelOf, type Names, type Run } from "src/pages/Runs/figures";
import { dataRows, libraryRows, type Provenance, statisticsOf } from "src/pages/Runs/provenance";
import { dataPath, runsPath } from "src/routes";

interface Line {
  name: string;
  values: (string | null)[];
  /** The places of the best. */
  best: number[];
}

/** Parameters, metrics, data and libraries of some runs side by side; of metrics the best is bold. */
export function Differences({ dagId, runs, names }: { dagId: string; runs: readonly Run[]; names: Names }) {
  const [everything, setEverything] = useQueryFlag("all");
  const keep = ({ values }: Line) => values.some((value) => value !== null) && (everything || new Set(values).size > 1);
  const params = names.params
    .map((name) => ({ name, values: runs.map((run) => run.params[name] ?? null), best: [] }))
    .filter(keep);
  const metrics = sameOnce(names.metrics.map((name) => ofMetric(name, runs)).filter(keep));
  const { found, isPending, error } = useProvenance(dagId, runs);
  const [data, libraries] = [dataRows(found), libraryRows(found)].map((rows) =>
    rows.map((row) => ({ ...row, best: [] })).filter(keep),
  );
  const statistics = statisticsOf(found);
  const times = [{ name: "duration", values: runs.map((run) => formatDuration(durationOf(run))), best: [] }].filter(
    keep,
  );
  const unknown = (isKnown: (each: Provenance) => boolean) =>
    runs.filter((_, place) => !(found[place] && isKnown(found[place]))).map((run) => labelOf(run));
  return (
    <Box>
      {error !== null && <ErrorAlert error={error} />}
      <Toggle mb={2} label="Only differences" checked={!everything} onChange={(checked) => setEverything(!checked)} />
      <Box borderWidth={1} borderRadius="md" overflow="auto" maxH="50vh" tabIndex={0}>
        <Table.Root size="sm" stickyHeader width="auto" aria-label="Differences of the selected runs">
          <Table.Header>
            <Table.Row>
              <Table.ColumnHeader
                position={{ md: "sticky" }}
                left={0}
                zIndex={2}
                bg="bg"
                minW={{ base: "120px", md: "220px" }}
              />
              {runs.map((run) => (
                <Table.ColumnHeader key={run.run_id} textAlign="end" minW="150px" maxW="240px">
                  <AppLink to={runsPath(dagId, { run: run.run_id })} truncate title={run.name}>
                    {labelOf(run)}
                  </AppLink>
                </Table.ColumnHeader>
              ))}
            </Table.Row>
          </Table.Header>
          <Table.Body>
            <Section title="Metrics" lines={metrics} width={runs.length} />
            <Section title="Parameters" lines={params} width={runs.length} />
            {!isPending && (
              <>
                <Section
                  title="Data"
                  lines={data ?? []}
                  width={runs.length}
                  unknown={unknown(({ data }) => data.length > 0)}
                >
                  {statistics.length > 1 && (
                    <AppLink to={dataPath(dagId, { artifacts: statistics })} marginInlineStart={3}>
                      Compare the statistics
                    </AppLink>
                  )}
                </Section>
                <Section
                  title="Libraries"
                  lines={libraries ?? []}
                  width={runs.length}
                  unknown={unknown(({ packages }) => packages !== null)}
                />
              </>
            )}
            <Section title="Time" lines={times} width={runs.length} />
          </Table.Body>
        </Table.Root>
      </Box>
    </Box>
  );
}

/** Lines of the same values, as of one figure under two names, are one. */
function sameOnce(lines: readonly Line[]): Line[] {
  const once = new Map<string, Line>();
  for (const line of lines) {
    const key = JSON.stringify(line.values);
    const same = once.get(key);
    once.set(key, same ? { ...same, name: `${same.name}, ${line.name}` } : line);
  }
  return [...once.values()];
}

function ofMetric(name: string, runs: readonly Run[]): Line {
  const numbers = runs.map((run) => run.metrics[name] ?? null);
  const known = numbers.filter((value) => value !== null);
  const best = isLoss(name) ? Math.min(...known) : Math.max(...known);
  const differ = new Set(known).size > 1;
  return {
    name: metricHeading(name),
    values: numbers.map((value) => (value === null ? null : formatNumber(value, 5))),
    // A champion's figures judge the champion, not the run.
    best:
      differ && !name.startsWith("evaluation.champion_")
        ? numbers.flatMap((value, place) => (value === best ? [place] : []))
        : [],
  };
}

interface Props {
  title: string;
  lines: readonly Line[];
  width: number;
  /** The runs of which nothing is known. */
  unknown?: readonly string[];
  children?: ReactNode;
}

function Section({ title, lines, width, unknown = [], children }: Props) {
  return (
    <>
      <Table.Row bg="bg.subtle">
        <Table.Cell colSpan={width + 1} py={1} fontSize="xs" fontWeight="semibold" color="fg.muted">
          {title}
          {unknown.length > 0 && `: not known of ${unknown.join(", ")}`}
          {lines.length === 0 && unknown.length === 0 && ": the same in all runs"}
          {children}
        </Table.Cell>
      </Table.Row>
      {lines.map(({ name, values, best }) => (
        <Table.Row key={name}>
          <Table.Cell position={{ md: "sticky" }} left={0} bg="bg" py={1.5} overflowWrap="anywhere">
            <Breakable name={name} />
          </Table.Cell>
          {values.map((value, place) => (
            <Table.Cell
              // biome-ignore lint/suspicious/noArrayIndexKey: columns are runs, whose order is the row's
              key={place}
              py={1.5}
              textAlign="end"
              fontVariantNumeric="tabular-nums"
              maxW="240px"
              truncate
              title={value ?? undefined}
              color={best.includes(place) ? "fg.success" : undefined}
              fontWeight={best.includes(place) ? "semibold" : undefined}
            >
              {value ?? <Text color="fg.muted">–</Text>}
              {best.includes(place) && <LuTrophy aria-label="the best" style={BEST} />}
            </Table.Cell>
          ))}
        </Table.Row>
      ))}
    </>
  );
}

const BEST = { display: "inline", verticalAlign: "-2px", marginInlineStart: 4 };
const KEPT_MS = 300_000;

/** What some runs were made from and with; null of a run of which that has not come, or cannot be told. */
function useProvenance(dagId: string, runs: readonly Run[]) {
  return useQueries({
    queries: runs.map((run) =>
      api.queryOptions(
        "get",
        "/api/dags/{dag_id}/training-runs/{training_id}/provenance",
        { params: { path: { dag_id: dagId, training_id: run.run_id } } },
        { staleTime: KEPT_MS },
      ),
    ),
    combine: (answers) => ({
      found: answers.map(({ data }): Provenance | null => data ?? null),
      isPending: answers.some((each) => each.isPending),
      error: answers.find((each) => each.isError)?.error ?? null,
    }),
  });
}
