import { Box, Button, Grid, HStack, Stack, Text } from "@chakra-ui/react";
import { keepPreviousData } from "@tanstack/react-query";
import { useMemo } from "react";
import { api, refetchAfter } from "src/api/client";
import { AppLink, Choice, Empty, ERROR, LinesAlert, LoadingBox, QueryView, TabPanels, Time } from "src/components";
import { plural } from "src/format";
import { useExtensionPages } from "src/hooks/useExtensions";
import { useQuery, useQueryParam } from "src/hooks/useQueryState";
import { CheckSummary } from "src/pages/Skew/CheckSummary";
import { Comparison } from "src/pages/Skew/Comparison";
import { FeatureChart } from "src/pages/Skew/FeatureChart";
import { FeatureTable } from "src/pages/Skew/FeatureTable";
import { doubtsOf, featureRows, type Timeline } from "src/pages/Skew/timeline";
import { airflowDagPath, airflowTaskPath, formatArtifact, isSameTask, parseArtifact, refOf } from "src/routes";
import { ExtensionView } from "src/shell/ExtensionView";
import { useDagId } from "src/shell/OfPipeline";

const FEW = 30;
const MANY = 200;

/** How far the data has moved from what the model learnt, feature by feature, comparison by comparison. */
export function SkewPage() {
  const dagId = useDagId();
  const [source] = useQueryParam("source");
  const [artifact] = useQueryParam("artifact");
  const named = parseArtifact(artifact);
  const [span] = useQueryParam("last", String(FEW));
  const limit = Math.min(Math.max(Number(span) || FEW, 1), MANY);
  const query = api.useQuery(
    "get",
    "/api/dags/{dag_id}/skew",
    {
      params: {
        path: { dag_id: dagId },
        query: { source: source || (named ? `${named.dag_id}/${named.task_id}` : undefined), limit },
      },
    },
    { placeholderData: keepPreviousData, refetchInterval: (query) => refetchAfter(30_000, query) },
  );
  return (
    <QueryView query={query} loading={<LoadingBox height="480px" />}>
      {(timeline) => <Tabs timeline={timeline as Timeline} limit={limit} />}
    </QueryView>
  );
}

/** The comparisons; of a model's requests, beside the tabs of extensions. */
function Tabs({ timeline, limit }: { timeline: Timeline; limit: number }) {
  const dagId = useDagId();
  const [tab, setTab] = useQueryParam("tab", "comparisons");
  const { pages, isPending } = useExtensionPages("skew");
  const { entries, source } = timeline;
  const content =
    entries.length === 0 ? (
      <NothingYet timeline={timeline} />
    ) : (
      <Loaded dagId={dagId} timeline={timeline} limit={limit} />
    );
  if (!source?.model || (!isPending && pages.length === 0)) {
    return content;
  }
  const props = { dagId: source.dag_id, model: source.model };
  const further = pages.map((page) => ({ ...page, content: <ExtensionView page={page} {...props} /> }));
  const tabs = [{ name: "comparisons", label: "Comparisons", content }, ...further];
  return <TabPanels tabs={tabs} opened={tab} onOpen={setTab} loading={isPending} />;
}

function Loaded({ dagId, timeline, limit }: { dagId: string; timeline: Timeline; limit: number }) {
  const [query, change] = useQuery();
  const { entries: checks } = timeline;
  const rows = useMemo(() => featureRows(timeline), [timeline]);
  const feature = query.get("feature") ?? rows[0]?.name ?? null;
  const row = rows.find(({ name }) => name === feature) ?? null;
  const named = parseArtifact(query.get("artifact") ?? "");
  const at = named ? checks.findIndex((check) => isSameTask(check, named)) : checks.length - 1;
  const check = checks[at] ?? null;
  const chosen = named ?? (check ? refOf(check) : null);
  const choose = (index: number, name: string | null = feature) => {
    const next = checks[index];
    if (next) {
      change({ artifact: formatArtifact(refOf(next)), feature: name }, { push: true });
    }
  };
  const summary = check && (
    <CheckSummary
      check={check}
      onOlder={at > 0 ? () => choose(at - 1) : undefined}
      onNewer={at < checks.length - 1 ? () => choose(at + 1) : undefined}
    />
  );
  return (
    <Stack gap={4}>
      <Bar timeline={timeline} limit={limit} />
      <LinesAlert lines={doubtsOf(timeline)} />
      <FailedMonitors timeline={timeline} />
      {rows.length === 0 && summary}
      {row && chosen && (
        <Grid templateColumns={{ base: "minmax(0, 1fr)", xl: "minmax(0, 3fr) minmax(340px, 2fr)" }} gap={5}>
          <Stack gap={3} minWidth={0}>
            <FeatureChart
              dagId={dagId}
              timeline={timeline}
              row={row}
              chosen={chosen}
              limit={limit}
              onChoose={(index) => choose(index)}
            />
            {summary ?? <TooOld limit={limit} />}
          </Stack>
          {check && typeof row.scores[at] !== "number" && !check.drifted.includes(row.name) ? (
            <Empty title={`${row.name} was not compared`}>
              {check.verdict === "insufficient" ? "There were too few rows." : "Choose another point."}
            </Empty>
          ) : (
            <Comparison check={chosen} feature={row.name} judged={check?.verdict !== "insufficient"} />
          )}
        </Grid>
      )}
      {feature !== null && row === null && (
        <Empty title={`No comparison has the feature ${feature}`}>Choose one in the table.</Empty>
      )}
      {rows.length > 0 && (
        <FeatureTable
          rows={rows}
          checks={checks}
          opened={feature}
          chosen={at}
          onOpen={(name, index) =>
            index === undefined ? change({ feature: name }, { push: true }) : choose(index, name)
          }
        />
      )}
    </Stack>
  );
}

/** The comparison in the address is none of those that are shown. */
function TooOld({ limit }: { limit: number }) {
  const [, change] = useQuery();
  return (
    <Text fontSize="sm" color="fg.muted">
      The chosen comparison is older than those above.{" "}
      {limit < MANY && (
        <Button size="xs" variant="outline" onClick={() => change({ last: String(MANY) })}>
          Show the last {MANY}
        </Button>
      )}
    </Text>
  );
}

/** Which task's comparisons are shown, and how many. */
function Bar({ timeline, limit }: { timeline: Timeline; limit: number }) {
  const { sources, source, entries: checks, total_entries: total } = timeline;
  const [, change] = useQuery();
  return (
    <HStack gap={3} fontSize="sm" wrap="wrap">
      {sources.length > 1 && source ? (
        <Choice
          quiet
          size="sm"
          label="Comparisons of"
          value={`${source.dag_id}/${source.task_id}`}
          onChange={(value) => change({ source: value, artifact: null, feature: null })}
          values={sources.map((each) => ({
            value: `${each.dag_id}/${each.task_id}`,
            label: `${each.dag_id} › ${each.task_id} (${each.checks})`,
          }))}
        />
      ) : (
        source && (
          <Text color="fg.muted">
            Compared by <AppLink to={airflowDagPath(source.dag_id)}>{source.dag_id}</AppLink> › {source.task_id}
          </Text>
        )
      )}
      <Text color="fg.muted">
        {checks.length === total
          ? plural(total, "comparison")
          : `the last ${checks.length} of ${plural(total, "comparison")}`}
      </Text>
      {total > checks.length && limit < MANY && (
        <Button size="xs" variant="outline" onClick={() => change({ last: String(MANY) })}>
          Show the last {Math.min(total, MANY)}
        </Button>
      )}
      {limit > FEW && (
        <Button size="xs" variant="outline" onClick={() => change({ last: null })}>
          Show fewer
        </Button>
      )}
    </HStack>
  );
}

function NothingYet({ timeline }: { timeline: Timeline }) {
  const [first] = timeline.sources;
  return first ? (
    <Stack gap={4}>
      <LinesAlert lines={doubtsOf(timeline)} />
      <FailedMonitors timeline={timeline} />
      <Empty title="No comparisons yet">
        <AppLink to={airflowDagPath(first.dag_id)}>{first.dag_id}</AppLink> compares in its task {first.task_id}: run it
        once the served model has answered requests.
      </Empty>
    </Stack>
  ) : (
    <Empty title="This pipeline is not monitored">
      Add a DAG with a SkewOperator: with model_name it compares requests with the training data of the served model;
      with reference and current, one span of data with another.
    </Empty>
  );
}

/** The newest failure of a monitoring task, in its own words: what it did not see is not stable. */
function FailedMonitors({ timeline: { failures, total_failures } }: { timeline: Timeline }) {
  const newest = failures.at(-1);
  return (
    newest && (
      <Box fontSize="sm" role="note">
        <Text color={ERROR} lineClamp={3} title={newest.message ?? undefined}>
          <AppLink to={airflowTaskPath(newest.task)}>{newest.task.task_id}</AppLink> failed <Time at={newest.at} />
          {newest.message && `: ${newest.message}`}
        </Text>
        {total_failures > 1 && (
          <Text color="fg.muted">
            It is the last of {plural(total_failures, "failure")} of monitoring tasks in the time shown
            {total_failures > failures.length && `; the newest ${failures.length} are marked`}.
          </Text>
        )}
      </Box>
    )
  );
}
