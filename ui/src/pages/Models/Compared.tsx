import { Text } from "@chakra-ui/react";
import type { Schemas } from "src/api/client";
import { QueryView } from "src/components";
import { FiguresTable } from "src/pages/Models/FiguresTable";
import { directionsOf, splitsOf } from "src/pages/Models/figures";
import { type ModelDetail, useCandidateEvaluation, useEvaluation } from "src/pages/Models/queries";
import type { Evaluated } from "src/pages/Models/versions";
import type { ArtifactRef } from "src/routes";

/** A version's figures beside the champion's, of the evaluation of the later one: on the same rows. */
export function Compared({ dagId, detail, version }: { dagId: string; detail: ModelDetail; version: number }) {
  const champion = detail.champion?.version ?? version;
  const later = Math.max(version, champion);
  const evaluation = useEvaluation(dagId, detail.name, later);
  return (
    <QueryView query={evaluation}>
      {(found) => <Figures evaluation={found.evaluation} version={later} champion={Math.min(version, champion)} />}
    </QueryView>
  );
}

/** The same of a candidate. */
export function ComparedCandidate({ detail, judged }: { detail: ModelDetail; judged: ArtifactRef }) {
  const evaluation = useCandidateEvaluation(judged);
  return (
    <QueryView query={evaluation}>
      {(found) => <Figures evaluation={found} version={null} champion={detail.champion?.version ?? 0} />}
    </QueryView>
  );
}

interface Props {
  evaluation: Schemas["Evaluation"] | null;
  version: Evaluated;
  champion: number;
}

function Figures({ evaluation, version, champion }: Props) {
  const split = evaluation && splitsOf(evaluation.report).find((each) => each.champion !== null);
  return split && evaluation.report.champion?.version === champion ? (
    <FiguresTable
      brief
      split={split}
      version={version}
      champion={champion}
      metric={String(evaluation.report.rule.metric)}
      higher={directionsOf(evaluation.report.rule)}
    />
  ) : (
    <Text fontSize="sm" color="fg.muted">
      These two were never evaluated on the same rows, so their figures cannot be compared.
    </Text>
  );
}
