import { HStack, Text } from "@chakra-ui/react";
import { useQueries } from "@tanstack/react-query";
import type { Overview } from "src/api/pipelines";
import { AppLink } from "src/components/AppLink";
import { HistoryList } from "src/pages/Models/HistoryList";
import { historyOf } from "src/pages/Models/history";
import { modelOptions } from "src/pages/Models/queries";
import { Section } from "src/pages/Overview/Section";
import { modelsPath } from "src/routes";

const SHOWN = 8;

/** What was decided last, by whom and why: versions, candidates that were refused, retraining. */
export function DecisionSection({ overview: { pipeline, models, retraining } }: { overview: Overview }) {
  const details = useQueries({ queries: models.map((model) => modelOptions(pipeline.dag_id, model)) });
  const found = details.flatMap(({ data }) => data ?? []);
  // The decisions of each model by themselves: two models have versions of the same numbers.
  const entries = found
    .flatMap(({ decisions, refused }) => historyOf(decisions, refused))
    .concat(historyOf([], [], retraining))
    .toSorted((a, b) => Date.parse(b.at) - Date.parse(a.at));
  const all = (
    <HStack gap={3}>
      {models.map((model) => (
        <AppLink key={model} to={modelsPath(pipeline.dag_id, { model, tab: "decisions" })}>
          {models.length === 1 ? "All decisions" : model}
        </AppLink>
      ))}
    </HStack>
  );
  return (
    <Section title="Decisions" more={all}>
      {entries.length === 0 ? (
        <Text fontSize="sm" color="fg.muted">
          {found.length < models.length ? "Loading…" : "No decisions yet."}
        </Text>
      ) : (
        <HistoryList entries={entries.slice(0, SHOWN)} brief />
      )}
    </Section>
  );
}
