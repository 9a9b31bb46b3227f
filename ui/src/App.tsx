import { Box, VisuallyHidden } from "@chakra-ui/react";
import { QueryClientProvider } from "@tanstack/react-query";
import { Route, Routes, useLocation } from "react-router-dom";
import { queryClient } from "src/api/client";
import { ErrorBoundary, LoadingRows } from "src/components";
import { type ExtensionPage, useExtensionPages } from "src/hooks/useExtensions";
import { type HostProps, iterationIn } from "src/host";
import { DataPage } from "src/pages/Data/DataPage";
import { LineagePage } from "src/pages/Lineage/LineagePage";
import { ModelPage } from "src/pages/Models/ModelPage";
import { ModelsPage } from "src/pages/Models/ModelsPage";
import { OverviewPage } from "src/pages/Overview/OverviewPage";
import { PipelinesPage } from "src/pages/Pipelines/PipelinesPage";
import { RunsPage } from "src/pages/Runs/RunsPage";
import { SchemaPage } from "src/pages/Schema/SchemaPage";
import { SkewPage } from "src/pages/Skew/SkewPage";
import { ExtensionView } from "src/shell/ExtensionView";
import { NotFound } from "src/shell/NotFound";
import { OfPipeline, useDagId } from "src/shell/OfPipeline";
import { Shell } from "src/shell/Shell";
import { RunTab } from "src/tabs/RunTab";
import { TaskTab } from "src/tabs/TaskTab";

/** What the host shows: the pages, or the tab of the DAG run or task instance whose ids it passes. */
export function App(host: HostProps) {
  return (
    <QueryClientProvider client={queryClient}>
      <ErrorBoundary>
        <Content {...host} />
      </ErrorBoundary>
    </QueryClientProvider>
  );
}

function Content({ dagId, runId, taskId, mapIndex }: HostProps) {
  const { search } = useLocation();
  if (dagId === undefined || runId === undefined) {
    return <Pages />;
  }
  return (
    <Box as="main" p={3} height="full" overflowY="auto">
      <VisuallyHidden asChild>
        <h1>{taskId === undefined ? `ML Artifacts of ${runId}` : `ML Results of ${taskId}`}</h1>
      </VisuallyHidden>
      {taskId === undefined ? (
        <RunTab dagId={dagId} runId={runId} />
      ) : (
        <TaskTab
          dagId={dagId}
          runId={runId}
          taskId={taskId}
          mapIndex={Number(mapIndex ?? -1)}
          iteration={iterationIn(search, mapIndex !== undefined)}
        />
      )}
    </Box>
  );
}

function Pages() {
  const { pages: besidePipelines, isPending } = useExtensionPages("pipelines");
  const { pages: ofPipeline } = useExtensionPages("pipeline");
  return (
    <Routes>
      <Route element={<Shell />}>
        <Route index element={<PipelinesPage />} />
        {besidePipelines.map((page) => (
          <Route key={page.name} path={page.name} element={<ExtensionView page={page} />} />
        ))}
        <Route element={<OfPipeline />}>
          <Route path="overview" element={<OverviewPage />} />
          <Route path="data" element={<DataPage />} />
          <Route path="schema" element={<SchemaPage />} />
          <Route path="runs" element={<RunsPage />} />
          <Route path="models" element={<ModelsPage />} />
          <Route path="models/:model" element={<ModelPage />} />
          <Route path="skew" element={<SkewPage />} />
          <Route path="lineage" element={<LineagePage />} />
          {ofPipeline.map((page) => (
            <Route key={page.name} path={page.name} element={<OfExtension page={page} />} />
          ))}
        </Route>
        <Route path="*" element={isPending ? <LoadingRows /> : <NotFound />} />
      </Route>
    </Routes>
  );
}

function OfExtension({ page }: { page: ExtensionPage }) {
  return <ExtensionView page={page} dagId={useDagId()} />;
}
