import { Button, chakra, HStack, Stack, Text } from "@chakra-ui/react";
import { LuDownload } from "react-icons/lu";
import { Choice, Empty, QueryView, Segments } from "src/components";
import { formatTime, shortRun } from "src/format";
import { useExtensions } from "src/hooks/useExtensions";
import { useQuery } from "src/hooks/useQueryState";
import { useTimezone } from "src/host";
import { CandidateEvaluation, EvaluationView } from "src/pages/Models/EvaluationView";
import { cardAddress, type ModelDetail, useEvaluation } from "src/pages/Models/queries";
import { type ArtifactRef, formatArtifact, parseArtifact } from "src/routes";

const CHOICES = 12;

/** The evaluation of a version when it was made, beside the champion at the time, overall and by slice. */
export function EvaluationTab({ dagId, detail }: { dagId: string; detail: ModelDetail }) {
  const [query, change] = useQuery();
  const hasCards = useExtensions()("model_cards");
  const named = detail.deployed.find((version) => String(version) === query.get("version"));
  const version = named ?? detail.challenger?.version ?? detail.champion?.version ?? detail.deployed[0];
  const newest = version === undefined ? detail.refused[0]?.judged : undefined;
  const candidate = parseArtifact(query.get("candidate") ?? "") ?? newest ?? null;
  if (version === undefined && candidate === null) {
    return <Empty title="No version has been evaluated yet" />;
  }
  const choose = (chosen: { version?: string; candidate?: string }) =>
    change({ version: null, candidate: null, by: null, slice: null, ...chosen });
  return (
    <Stack gap={4}>
      <HStack gap={3} wrap="wrap">
        {version !== undefined && (
          <>
            <Text fontSize="sm" color="fg.muted">
              Version
            </Text>
            <Segments
              size="xs"
              label="Version"
              value={candidate ? "" : String(version)}
              onChange={(value) => choose({ version: value })}
              items={detail.deployed.slice(0, CHOICES).map((each) => [String(each), `v${each}${roleOf(detail, each)}`])}
            />
          </>
        )}
        <RefusedChoice detail={detail} candidate={candidate} onChoose={(value) => choose({ candidate: value })} />
        {hasCards && version !== undefined && candidate === null && (
          <Button asChild size="xs" variant="outline" flexShrink={0}>
            <chakra.a href={cardAddress(dagId, detail.name, version)} download>
              <LuDownload />
              Download model card
            </chakra.a>
          </Button>
        )}
      </HStack>
      {candidate ? (
        <CandidateEvaluation key={formatArtifact(candidate)} judged={candidate} />
      ) : (
        version !== undefined && <OfVersion key={version} dagId={dagId} model={detail.name} version={version} />
      )}
    </Stack>
  );
}

interface Props {
  detail: ModelDetail;
  candidate: ArtifactRef | null;
  onChoose: (value: string) => void;
}

/** The refused candidates to choose from; the one that the address names is among them in any case. */
function RefusedChoice({ detail: { refused }, candidate, onChoose }: Props) {
  const zone = useTimezone();
  const values = refused.map(({ at, judged }) => ({ value: formatArtifact(judged), label: formatTime(at, zone) }));
  const value = candidate ? formatArtifact(candidate) : "";
  if (values.every((each) => each.value !== value)) {
    values.unshift({ value, label: candidate ? shortRun(candidate.run_id) : "–" });
  }
  return (
    (refused.length > 0 || candidate !== null) && (
      <Choice
        label="Refused candidate"
        value={value}
        values={values}
        onChange={(chosen) => chosen && onChoose(chosen)}
      />
    )
  );
}

function roleOf({ champion, challenger }: ModelDetail, version: number): string {
  return version === champion?.version ? " champion" : version === challenger?.version ? " challenger" : "";
}

function OfVersion({ dagId, model, version }: { dagId: string; model: string; version: number }) {
  const evaluation = useEvaluation(dagId, model, version);
  return (
    <QueryView query={evaluation}>
      {({ evaluation: found, missing }) =>
        found ? <EvaluationView evaluation={found} version={version} /> : <Empty title={missing ?? ""} />
      }
    </QueryView>
  );
}
