import { Box, Drawer, HStack, Stack, Text, Timeline } from "@chakra-ui/react";
import { AppLink, formatNumber, modelsPath, PlainTable, QueryView, resultPath, SideDrawer, Time } from "airflow-hops";
import { LuArrowUpToLine, LuCircleDot, LuFlaskConical, LuPackage, LuTriangleAlert, LuUndo2 } from "react-icons/lu";
import { useSegment } from "src/extensions/fleet/queries";
import { ModelBadge } from "src/extensions/fleet/SegmentCard";
import { StatisticsTable } from "src/extensions/fleet/StatisticsTable";
import {
  type Chapter,
  chaptersOf,
  keyInWords,
  type SegmentVersion,
  STATE_WORDS,
  type Story,
} from "src/extensions/fleet/story";

interface Props {
  dagId: string;
  model: string;
  segment: string;
  onClose: () => void;
}

/** What happened to a segment, from drift to promotion. */
export function SegmentDrawer({ dagId, model, segment, onClose }: Props) {
  const story = useSegment(dagId, model, segment);
  return (
    <SideDrawer onClose={onClose} header={<Drawer.Title overflowWrap="anywhere">{keyInWords(segment)}</Drawer.Title>}>
      <QueryView query={story}>{(told) => <Told dagId={dagId} model={model} story={told} />}</QueryView>
    </SideDrawer>
  );
}

function Told({ dagId, model, story }: { dagId: string; model: string; story: Story }) {
  return (
    <Stack gap={5}>
      <Timeline.Root size="sm">
        {chaptersOf(story).map((chapter, place) => {
          const Icon = iconOf(chapter);
          return (
            // biome-ignore lint/suspicious/noArrayIndexKey: what happened has no other name
            <Timeline.Item key={place}>
              <Timeline.Connector>
                <Timeline.Separator />
                <Timeline.Indicator>
                  <Icon aria-hidden />
                </Timeline.Indicator>
              </Timeline.Connector>
              <Timeline.Content pb={3} minW={0}>
                <HStack gap={3} wrap="wrap">
                  <Text fontWeight="medium">{titleOf(chapter)}</Text>
                  <Text fontSize="sm" color="fg.muted">
                    <Time at={chapter.at} />
                  </Text>
                </HStack>
                <Box fontSize="sm" color="fg.muted" overflowWrap="anywhere">
                  <Details chapter={chapter} />
                </Box>
              </Timeline.Content>
            </Timeline.Item>
          );
        })}
      </Timeline.Root>
      <PlainTable<SegmentVersion>
        label="Versions"
        rows={story.versions.toReversed()}
        rowKey={({ version }) => version}
        columns={[
          {
            label: "Version",
            cell: ({ version }) => <AppLink to={modelsPath(dagId, { model, version })}>{version}</AppLink>,
          },
          { label: "Model", cell: ({ state }) => <ModelBadge state={state} /> },
          { label: "Rows", end: true, cell: ({ rows }) => formatNumber(rows) },
          { label: "Loss", end: true, cell: ({ loss }) => formatNumber(loss) },
          {
            label: "Pooled",
            end: true,
            cell: (each) => formatNumber(each.pooled_loss),
            help: "Loss of the pooled model",
          },
          { label: "Since", cell: ({ at }) => <Time at={at} /> },
        ]}
      />
      <StatisticsTable dagId={dagId} model={model} segment={story.segment} />
    </Stack>
  );
}

const ICONS: Record<string, typeof LuPackage> = {
  canary: LuFlaskConical,
  promoted: LuArrowUpToLine,
  rolled_back: LuUndo2,
};

function iconOf(chapter: Chapter): typeof LuPackage {
  switch (chapter.kind) {
    case "drift":
      return LuTriangleAlert;
    case "model":
      return LuPackage;
    case "decision":
      return ICONS[chapter.decision.event] ?? LuCircleDot;
  }
}

const EVENTS: Record<string, string> = {
  deployed: "serves",
  canary: "is tried as a canary",
  promoted: "was promoted",
  rolled_back: "was rolled back",
};

function titleOf(chapter: Chapter): string {
  switch (chapter.kind) {
    case "drift":
      return chapter.drift.group ? `All of ${chapter.drift.group} moved` : "Its data moved";
    case "model":
      return `${chapter.before === null ? "First" : "New"} model, in version ${chapter.version.version}`;
    case "decision":
      return `Version ${chapter.decision.version} ${EVENTS[chapter.decision.event] ?? chapter.decision.event}`;
  }
}

function Details({ chapter }: { chapter: Chapter }) {
  switch (chapter.kind) {
    case "drift":
      return (
        <>
          {chapter.drift.words} · <AppLink to={resultPath(chapter.drift)}>the comparison</AppLink>
        </>
      );
    case "model": {
      const { version, before } = chapter;
      const was = before === null ? "" : `, ${formatNumber(before.loss)} before`;
      return (
        <>
          {version.state === "pooled" && `${STATE_WORDS.pooled}: `}
          {version.reason}. Loss {formatNumber(version.loss)}
          {was}; the pooled model's {formatNumber(version.pooled_loss)}.
        </>
      );
    }
    case "decision":
      return chapter.decision.why;
  }
}
