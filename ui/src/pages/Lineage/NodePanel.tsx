import { Box, Heading, HStack, Icon, Stack, Text } from "@chakra-ui/react";
import type { ReactNode } from "react";
import { LuCrosshair } from "react-icons/lu";
import { AppLink, Time } from "src/components";
import { formatBytes, formatNumber, plural, shortRun } from "src/format";
import type { Lineage, Node } from "src/pages/Lineage/graph";
import { kindOf, spanOf, summaryOf, targetOf } from "src/pages/Lineage/kinds";
import { ServedBadge } from "src/pages/Lineage/ServedBadge";
import {
  airflowRunPath,
  airflowTaskPath,
  artifactPath,
  instanceLabel,
  lineagePath,
  modelsPath,
  runsPath,
} from "src/routes";
import { useDagId } from "src/shell/OfPipeline";

/** An artifact of the lineage: figures, who made it, who holds it, where to look at it, how to make it again. */
export function NodePanel({ lineage, node }: { lineage: Lineage; node: Node }) {
  const kind = kindOf(node);
  const dagId = useDagId();
  const page = node.address && node.state === "present" ? artifactPath(node.address) : null;
  const isShownHere = page?.includes("/lineage?") ?? true;
  return (
    <Stack gap={3} borderWidth={1} borderRadius="md" p={4} fontSize="sm">
      <HStack gap={2} colorPalette={kind.palette} wrap="wrap">
        <Icon as={kind.icon} color="colorPalette.fg" boxSize={5} aria-hidden />
        <Heading as="h2" size="md">
          {kind.label}
        </Heading>
        {node.served.map((mark) => (
          <ServedBadge key={`${mark.model} ${mark.version}`} mark={mark} />
        ))}
      </HStack>
      <Text color="fg.muted">{node.state === "present" ? summaryOf(node) : (node.detail ?? summaryOf(node))}</Text>
      {node.address && (
        <HStack gap={3} wrap="wrap">
          {node.served.map(({ model, version }) => (
            <AppLink key={`${model} ${version}`} to={modelsPath(dagId, { model, version })}>
              {model} v{version}
            </AppLink>
          ))}
          {node.kind === "model" && <AppLink to={runsPath(node.address.dag_id)}>Training runs</AppLink>}
          {page && !isShownHere && <AppLink to={page}>Open {kind.label.toLowerCase()}</AppLink>}
          {node.id !== lineage.focus && node.state === "present" && (
            <AppLink to={lineagePath(node.address.dag_id, { artifact: node.address })}>
              <Icon as={LuCrosshair} boxSize={3.5} /> Lineage of this
            </AppLink>
          )}
          <AppLink to={airflowTaskPath(node.address)}>Task</AppLink>
          <AppLink to={airflowRunPath(node.address.dag_id, node.address.run_id)}>DAG run</AppLink>
        </HStack>
      )}
      <Stack as="dl" gap={1}>
        {node.address && (
          <Row label="Made by">
            {node.address.dag_id} › {node.address.task_id}
            {instanceLabel(node.address)}
          </Row>
        )}
        {node.address && <Row label="In run">{shortRun(node.address.run_id)}</Row>}
        {node.created_at && (
          <Row label="When">
            <Time at={node.created_at} />
          </Row>
        )}
        {targetOf(node) && <Row label="Predicted">{targetOf(node)}</Row>}
        {typeof node.facts.framework === "string" && <Row label="Framework">{node.facts.framework}</Row>}
        {spanOf(node) && <Row label="Data of">{spanOf(node)}</Row>}
        {node.rows !== null && <Row label="Rows">{formatNumber(node.rows)}</Row>}
        {node.size_bytes !== null && (
          <Row label="Size">
            {formatBytes(node.size_bytes)}
            {node.files !== null && ` in ${plural(node.files, "file")}`}
          </Row>
        )}
        {node.fingerprint && (
          <Row label="Fingerprint">
            <Text as="span" fontFamily="mono" title={node.fingerprint}>
              {node.fingerprint.slice(0, 16)}
            </Text>
          </Row>
        )}
        {Object.entries(node.metrics)
          .slice(0, 8)
          .map(([name, value]) => (
            <Row key={name} label={name}>
              {formatNumber(value)}
            </Row>
          ))}
      </Stack>
      {node.cached && (
        <Text>Made by an earlier run: nothing had changed, so the task of this run reused it from the cache.</Text>
      )}
      {node.runs.length > 1 && (
        <Box>
          <Text fontWeight="semibold">Used by {node.runs.length} runs</Text>
          {node.runs.map((run) => (
            <Box key={`${run.dag_id} ${run.run_id}`} truncate>
              <AppLink to={airflowRunPath(run.dag_id, run.run_id)}>{shortRun(run.run_id)}</AppLink>
            </Box>
          ))}
        </Box>
      )}
    </Stack>
  );
}

function Row({ label, children }: { label: string; children: ReactNode }) {
  return (
    <HStack justify="space-between" align="baseline" gap={4}>
      <Text as="dt" color="fg.muted" flexShrink={0}>
        {label}
      </Text>
      <Box as="dd" textAlign="end" overflowWrap="anywhere" fontVariantNumeric="tabular-nums">
        {children}
      </Box>
    </HStack>
  );
}
