import { Box, Flex, Heading, HStack, Text } from "@chakra-ui/react";
import { AppLink, StateBadge } from "src/components";
import { formatNumber, formatPercent, plural } from "src/format";
import { measureName } from "src/measures";
import type { Finding, Reason } from "src/pages/Schema/findings";
import type { ValidationReport } from "src/pages/Schema/queries";
import { SidePanel } from "src/pages/Schema/SidePanel";
import { Value } from "src/pages/Schema/Value";
import { rowCount } from "src/pages/Schema/words";
import { dataPath, pagePath } from "src/routes";

interface Props {
  dagId: string;
  report: ValidationReport;
  finding: Finding;
  onClose: () => void;
}

/** All that is known of the anomalies of a feature, split by split. */
export function AnomalyPanel({ dagId, report, finding, onClose }: Props) {
  const { feature } = finding;
  const { statistics, schema_name: schema, schema_version: version } = report;
  const measures = report.measures.filter((each) => each.feature === feature);
  return (
    <SidePanel label={`Anomalies of ${feature || "the data set"}`} title={feature || "The data set"} onClose={onClose}>
      <HStack gap={4} mb={3} wrap="wrap">
        {statistics && feature && (
          <AppLink to={dataPath(statistics.dag_id, { artifacts: [statistics], feature })}>Data of this feature</AppLink>
        )}
        {schema && feature && (
          <AppLink to={pagePath("schema", dagId, { tab: "schema", schema, version, feature })}>
            Schema of this feature
          </AppLink>
        )}
      </HStack>
      {Object.entries(finding.bySplit).map(([split, { severity, reasons }]) => (
        <Box key={split} as="section" aria-label={`Split ${split}`} py={3} borderTopWidth={1}>
          <HStack mb={1}>
            <Heading size="sm">{split}</Heading>
            <StateBadge state={severity} size="xs" />
          </HStack>
          {reasons.map((reason) => (
            <ReasonView key={reason.type} reason={reason} of={report.rows[split] ?? 0} />
          ))}
        </Box>
      ))}
      {measures.map((each) => (
        <Text key={`${each.split} ${each.measure}`} py={1}>
          {each.split}: {measureName(each.measure)} {formatNumber(each.value)}, threshold {formatNumber(each.threshold)}
        </Text>
      ))}
    </SidePanel>
  );
}

function ReasonView({ reason, of }: { reason: Reason; of: number }) {
  const most = Math.max(...reason.values.map(({ rows }) => rows ?? 0), 1);
  return (
    <Box mb={3}>
      <Text fontWeight="medium" title={reason.type}>
        {reason.summary}
      </Text>
      {reason.rows !== null && (
        <Text>
          {reason.is_exact ? "" : "about "}
          {rowCount(reason.rows, true)} of {formatNumber(of)} rows ({formatPercent(of ? reason.rows / of : null, 2)})
          {reason.quarantined > 0 && ", now in quarantine"}
        </Text>
      )}
      <Text color="fg.muted" whiteSpace="pre-wrap" wordBreak="break-word">
        {reason.description}
      </Text>
      {reason.values.length > 0 && (
        <Box as="ul" mt={2} listStyleType="none" aria-label="Offending values">
          {reason.values.map(({ value, rows }) => (
            <Flex as="li" key={value} align="center" gap={2} py={0.5}>
              <Box flex={1} minW={0}>
                <Value>{value}</Value>
              </Box>
              {rows !== null && (
                <>
                  <Box width="20" height="2" bg="bg.emphasized" borderRadius="full" overflow="hidden" aria-hidden>
                    <Box height="full" bg="brand.solid" width={`${(100 * rows) / most}%`} />
                  </Box>
                  <Text width="16" textAlign="end" fontVariantNumeric="tabular-nums">
                    {formatNumber(rows)}
                  </Text>
                </>
              )}
            </Flex>
          ))}
          {reason.values_count > reason.values.length && (
            <Text color="fg.muted">and {plural(reason.values_count - reason.values.length, "other value")}</Text>
          )}
        </Box>
      )}
    </Box>
  );
}
