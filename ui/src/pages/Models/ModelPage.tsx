import { Code, Stack } from "@chakra-ui/react";
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { useParams } from "react-router-dom";
import { Empty, LoadingSections, MANY, QueryView, ShowMore, TabPanels } from "src/components";
import { useModelPages } from "src/hooks/useExtensions";
import { useQueryParam } from "src/hooks/useQueryState";
import { Endpoint } from "src/pages/Models/Endpoint";
import { EvaluationTab } from "src/pages/Models/EvaluationTab";
import { HistoryList } from "src/pages/Models/HistoryList";
import { historyOf } from "src/pages/Models/history";
import { LiveCharts } from "src/pages/Models/LiveCharts";
import { LogTab } from "src/pages/Models/LogTab";
import { ModelHeader } from "src/pages/Models/ModelHeader";
import { PerformanceTab } from "src/pages/Models/PerformanceTab";
import { type LiveModel, liveOptions, type ModelDetail, useMinutes, useModel } from "src/pages/Models/queries";
import { Scoring } from "src/pages/Models/Scoring";
import { VersionTable } from "src/pages/Models/VersionTable";
import { ExtensionView } from "src/shell/ExtensionView";
import { useDagId } from "src/shell/OfPipeline";

/** A model: how it serves now, its versions, what they are worth, who decided what, the server's log. */
export function ModelPage() {
  const { model = "" } = useParams();
  const dagId = useDagId();
  const detail = useModel(dagId, model);
  return (
    <QueryView query={detail} loading={<LoadingSections titles={[model, "Endpoint", "Versions"]} />}>
      {(found) => <Loaded key={found.name} dagId={dagId} detail={found} />}
    </QueryView>
  );
}

function Loaded({ dagId, detail }: { dagId: string; detail: ModelDetail }) {
  const [tab, setTab] = useQueryParam("tab", "serving");
  const { pages, isPending } = useModelPages(dagId, detail.name);
  const [minutes] = useMinutes();
  const live = useQuery(liveOptions(dagId, detail.name, minutes)).data;
  const scores = live?.scores_tables ?? false;
  const tabs = [
    {
      name: "serving",
      label: scores ? "Scoring" : "Serving",
      content: <ServingTab dagId={dagId} detail={detail} live={live} minutes={minutes} />,
    },
    { name: "evaluation", label: "Evaluation", content: <EvaluationTab dagId={dagId} detail={detail} /> },
    { name: "performance", label: "Performance", content: <PerformanceTab dagId={dagId} model={detail.name} /> },
    ...pages.map((page) => ({
      name: page.name,
      label: page.label,
      content: <ExtensionView page={page} dagId={dagId} model={detail.name} />,
    })),
    { name: "decisions", label: "Decisions", content: <DecisionsTab detail={detail} /> },
    ...(scores ? [] : [{ name: "log", label: "Log", content: <LogTab dagId={dagId} detail={detail} /> }]),
  ];
  if (detail.decisions.length === 0) {
    return (
      <>
        <Empty title={`${detail.name} has not been deployed yet`}>
          The first run of <Code>{dagId}</Code> that reaches its <Code>DeployModelOperator</Code> registers version 1
          and gives it all the traffic.
        </Empty>
        {detail.refused.length > 0 && <DecisionsTab detail={detail} />}
      </>
    );
  }
  return (
    <Stack gap={4}>
      <ModelHeader dagId={dagId} detail={detail} live={tab === "serving" || scores ? undefined : live} />
      {scores && tab !== "serving" && <Endpoint dagId={dagId} detail={detail} />}
      <TabPanels tabs={tabs} opened={tab} onOpen={setTab} loading={isPending} />
    </Stack>
  );
}

interface Serving {
  dagId: string;
  detail: ModelDetail;
  live: LiveModel | undefined;
  minutes: number;
}

/** The last minutes drawn, or the last windows, and all versions. */
function ServingTab({ dagId, detail, live, minutes }: Serving) {
  return (
    <Stack gap={4}>
      {live?.scores_tables ? (
        <Scoring dagId={dagId} model={detail.name} all />
      ) : (
        <Endpoint dagId={dagId} detail={detail} />
      )}
      {live?.series && <LiveCharts series={live.series} minutes={minutes} decisions={detail.decisions} />}
      <VersionTable
        dagId={dagId}
        model={detail.name}
        onServer={live?.problem === null && !live.external && !live.scores_tables ? live.versions : undefined}
      />
    </Stack>
  );
}

/** Every decision on the model, the newest first: who, when, why; rollouts step by step; candidates that were refused. */
function DecisionsTab({ detail }: { detail: ModelDetail }) {
  const entries = historyOf(detail.decisions, detail.refused);
  const [shown, setShown] = useState(MANY);
  return entries.length === 0 ? (
    <Empty title="No decisions yet">The first decision is made when a run of the pipeline deploys a version.</Empty>
  ) : (
    <>
      <HistoryList entries={entries.slice(0, shown)} />
      <ShowMore shown={shown} of={entries.length} onMore={setShown} />
    </>
  );
}
