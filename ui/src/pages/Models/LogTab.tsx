import { Box, chakra, Text } from "@chakra-ui/react";
import { keepPreviousData } from "@tanstack/react-query";
import { useEffect, useRef } from "react";
import { api, refetchAfter, type Schemas } from "src/api/client";
import { Choice, type Color, ERROR, FilterBar, QueryView, Time, Toggle, WARNING } from "src/components";
import { plural } from "src/format";
import { useQueryFlag, useQueryParam } from "src/hooks/useQueryState";
import type { ModelDetail } from "src/pages/Models/queries";

const FOLLOW_MS = 2_000;
const LINES = 500;
const LEVELS = ["INFO", "WARNING", "ERROR"] as const;
/** Where it is narrow, a message has a line of its own. */
const MESSAGE_BELOW = { "@media (max-width: 48em)": { "& > * > :last-child": { gridColumn: "1 / -1" } } };
const COLORS: Record<string, Color> = { WARNING, ERROR, CRITICAL: ERROR };

/** The end of the server's log about this model; it follows what is written. */
export function LogTab({ dagId, detail }: { dagId: string; detail: ModelDetail }) {
  const [levelText, setLevel] = useQueryParam("level", "INFO");
  const [versionText, setVersion] = useQueryParam("of");
  const [follow, setFollow] = useQueryFlag("follow", true);
  const level = LEVELS.find((each) => each === levelText) ?? "INFO";
  const version = detail.deployed.find((each) => String(each) === versionText) ?? 0;
  const log = api.useQuery(
    "get",
    "/api/dags/{dag_id}/models/{model}/logs",
    { params: { path: { dag_id: dagId, model: detail.name }, query: { level, version, lines: LINES } } },
    {
      refetchInterval: (query) => (follow ? refetchAfter(FOLLOW_MS, query) : false),
      placeholderData: keepPreviousData,
    },
  );
  return (
    <Box>
      <FilterBar summary={log.data && plural(log.data.length, "line")}>
        <Choice
          quiet
          size="sm"
          width="40"
          label="Level"
          value={level}
          onChange={setLevel}
          values={LEVELS.map((each) => ({ value: each }))}
        />
        <Choice
          quiet
          size="sm"
          width="40"
          label="Version"
          value={version ? String(version) : ""}
          onChange={setVersion}
          values={[{ value: "", label: "all versions" }, ...detail.deployed.map(choiceOf)]}
        />
        <Toggle label="Follow" checked={follow} onChange={setFollow} />
      </FilterBar>
      <QueryView query={log}>{(lines) => <Lines lines={lines} follow={follow} />}</QueryView>
    </Box>
  );
}

const choiceOf = (version: number) => ({ value: String(version), label: `version ${version}` });

function Lines({ lines, follow }: { lines: Schemas["LogLine"][]; follow: boolean }) {
  const end = useRef<HTMLDivElement>(null);
  const newest = lines.at(-1)?.at;
  useEffect(() => {
    if (follow && newest && end.current) {
      end.current.scrollTop = end.current.scrollHeight;
    }
  }, [follow, newest]);
  if (lines.length === 0) {
    return (
      <Text mt={3} color="fg.muted" fontSize="sm">
        None of the newest lines that the server keeps match.
      </Text>
    );
  }
  return (
    <Box
      ref={end}
      role="log"
      aria-label="Log of the model server"
      mt={3}
      maxHeight="50vh"
      overflow="auto"
      borderWidth={1}
      borderRadius="md"
      bg="bg.subtle"
      fontFamily="mono"
      fontSize="xs"
      p={3}
      tabIndex={0}
      css={MESSAGE_BELOW}
    >
      {lines.map((line, index) => (
        // biome-ignore lint/suspicious/noArrayIndexKey: lines have no names, and two may be the same
        <Box key={index} display="grid" gridTemplateColumns="auto 4.5rem 2.5rem 1fr" gap={3} py="1px">
          <chakra.span color="fg.muted">
            <Time at={line.at} exact />
          </chakra.span>
          <chakra.span color={COLORS[line.level] ?? "fg.muted"} fontWeight="semibold">
            {line.level}
          </chakra.span>
          <chakra.span color="fg.muted">{line.version ? `v${line.version}` : ""}</chakra.span>
          <chakra.span whiteSpace="pre-wrap" wordBreak="break-word" title={line.logger}>
            {line.message}
          </chakra.span>
        </Box>
      ))}
    </Box>
  );
}
