import { Box, List, Text } from "@chakra-ui/react";
import type { ModelDetail } from "src/pages/Models/queries";
import { type Share, TrafficBar } from "src/pages/Models/TrafficBar";

interface Props {
  detail: ModelDetail;
  /** Null where the version that gets them has no number yet. */
  after: readonly Share[] | null;
  words: readonly (string | false | null)[];
}

/** What a decision will do: the shares before and after, and in words. */
export function Consequences({ detail, after, words }: Props) {
  const before = Object.entries(detail.traffic).map(([version, percent]) => ({ version: Number(version), percent }));
  return (
    <>
      <Box>
        <Text fontSize="xs" color="fg.muted">
          Traffic now
        </Text>
        <TrafficBar shares={before} />
        {after && (
          <>
            <Text fontSize="xs" color="fg.muted" mt={2}>
              Traffic afterwards
            </Text>
            <TrafficBar shares={after} />
          </>
        )}
      </Box>
      <List.Root gap={1} ps={4} fontSize="sm">
        {words
          .filter((each) => each !== false && each !== null)
          .map((each) => (
            <List.Item key={each}>{each}</List.Item>
          ))}
      </List.Root>
    </>
  );
}

/** What becomes of a rollout that a decision interrupts; null where none is under way. */
export function rolloutEnds({ rollout }: ModelDetail): string | null {
  return (
    rollout &&
    `This ends the rollout of version ${rollout.version}, which is at step ${rollout.number} of ${rollout.steps} (${rollout.percent}%): its task finishes with this decision.`
  );
}
