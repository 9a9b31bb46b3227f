import { Box, HStack, Progress, Text } from "@chakra-ui/react";
import { useMemo } from "react";
import type { Schemas } from "src/api/client";
import { Numbers } from "src/components";
import { formatDuration, formatNumber } from "src/format";
import { CurveGrid } from "src/pages/Runs/CurveGrid";
import { figuresOf } from "src/pages/Runs/curves";
import { curvesOf, secondsLeft } from "src/tabs/task/progress";

/** How far a step is, or was when it ended: a bar, its last words and figures, and its curves. */
export function TaskProgress({ result }: { result: Schemas["TaskResult"] }) {
  const reports = result.progress;
  const last = reports.at(-1);
  const isRunning = result.state === "running";
  const share = reports.findLast(({ progress }) => progress !== null)?.progress ?? null;
  const left = isRunning ? secondsLeft(reports, Date.now()) : null;
  const figures = Object.entries(last?.metrics ?? {});
  const curves = useMemo(() => curvesOf(reports), [reports]);
  const startedAt = (reports[0]?.at ?? 0) * 1000;
  const runs = useMemo(() => [{ run_id: "task", label: "this task", start_time: startedAt }], [startedAt]);
  return (
    <Box>
      <Box borderWidth={1} borderRadius="md" p={4}>
        <Progress.Root
          value={share === null ? (isRunning ? null : 0) : share * 100}
          colorPalette={isRunning ? "running" : result.state === "failed" ? "failed" : "gray"}
          size="md"
          aria-label="Progress of the task"
        >
          <HStack mb={1.5} gap={4}>
            <Text fontSize="lg" fontWeight="semibold" fontVariantNumeric="tabular-nums">
              {share === null ? (isRunning ? "starting" : "–") : `${Math.round(share * 100)}%`}
            </Text>
            <Text color="fg.muted">
              {last ? `${isRunning ? "" : "stopped at: "}${last.text}` : "No progress reported yet."}
            </Text>
            {left !== null && (
              <Text marginInlineStart="auto" fontVariantNumeric="tabular-nums">
                {left < 1 ? "nearly done" : `about ${formatDuration(Math.ceil(left))} left`}
              </Text>
            )}
          </HStack>
          <Progress.Track>
            <Progress.Range />
          </Progress.Track>
        </Progress.Root>
        {figures.length > 0 && (
          <Box mt={3}>
            <Numbers of={figures.map(([name, value]) => [name, formatNumber(value)])} fontSize="md" />
          </Box>
        )}
      </Box>
      {figuresOf(curves).length > 0 && (
        <Box mt={4}>
          <CurveGrid curves={curves} runs={runs} />
        </Box>
      )}
    </Box>
  );
}
