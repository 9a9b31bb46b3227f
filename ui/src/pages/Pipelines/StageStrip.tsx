import { Box, Flex, Stack, Text } from "@chakra-ui/react";
import type { Schemas } from "src/api/client";
import { Tooltip } from "src/components";

type Stage = Schemas["StageState"];

const words = (state: string) => state.replaceAll("_", " ");
const shareDone = ({ ended, instances }: Stage) => (instances > 1 ? ` ${ended} of ${instances}` : "");

/** The stages of a run, a square each in the colour of its state; their names on hover. */
export function StageStrip({ stages, width = "140px" }: { stages: readonly Stage[]; width?: string }) {
  const ended = stages.filter((stage) => stage.ended === stage.instances).length;
  const label = `${ended} of ${stages.length} stages ended: ${stages.map((s) => `${s.task_id} ${words(s.state)}`).join(", ")}`;
  return (
    <Tooltip
      content={
        <Stack gap={0}>
          {stages.map((stage) => (
            <Flex key={stage.task_id} gap={2} align="center">
              <Box boxSize="8px" borderRadius="2px" bg={`${stage.state}.solid`} flexShrink={0} />
              {stage.task_id}
              <Text as="span" opacity={0.7} marginInlineStart="auto">
                {words(stage.state)}
                {shareDone(stage)}
              </Text>
            </Flex>
          ))}
        </Stack>
      }
    >
      <Flex gap="2px" minWidth={0} role="img" aria-label={label} maxWidth={width} width={`${stages.length * 12}px`}>
        {stages.map(({ task_id, state }) => (
          <Box
            key={task_id}
            flex={1}
            minWidth="2px"
            height="8px"
            borderRadius="2px"
            bg={`${state}.solid`}
            opacity={state === "none" ? 0.35 : undefined}
            animation={state === "running" ? "pulse" : undefined}
          />
        ))}
      </Flex>
    </Tooltip>
  );
}
