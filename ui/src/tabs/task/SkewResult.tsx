import { Table } from "@chakra-ui/react";
import type { Schemas } from "src/api/client";
import { useSkewReport } from "src/api/skew";
import { AppLink } from "src/components/AppLink";
import { WARNING } from "src/components/colors";
import { LoadingRows } from "src/components/Loading";
import { QueryView } from "src/components/QueryView";
import { StateBadge } from "src/components/StateBadge";
import { formatNumber } from "src/format";
import { changeInWords } from "src/pages/Skew/words";
import { skewPath } from "src/routes";
import { Numbers } from "src/tabs/task/parts";

const MOST = 10;

/** A comparison with the training data: verdict, and the features that matter most with their changes. */
export function SkewResult({ artifact }: { artifact: Schemas["ArtifactEntry"] }) {
  const query = useSkewReport(artifact);
  return (
    <QueryView query={query} loading={<LoadingRows rows={4} />}>
      {({ verdict, features, rows_current, rows_reference, problem }) => {
        const drifted = verdict === "insufficient" ? null : features.filter((each) => each.drifted).length;
        return (
          <>
            <Numbers
              of={[
                ["verdict", <StateBadge key="verdict" state={verdict} />],
                ["features that drifted", formatNumber(drifted)],
                ["current rows", formatNumber(rows_current)],
                ["reference rows", formatNumber(rows_reference)],
              ]}
            />
            {features.length > 0 && (
              <Table.Root size="sm" maxW="6xl" aria-label="Features that matter most">
                <Table.Header>
                  <Table.Row>
                    <Table.ColumnHeader>Feature</Table.ColumnHeader>
                    <Table.ColumnHeader>Change</Table.ColumnHeader>
                    <Table.ColumnHeader textAlign="end">Distance</Table.ColumnHeader>
                    <Table.ColumnHeader textAlign="end">Threshold</Table.ColumnHeader>
                  </Table.Row>
                </Table.Header>
                <Table.Body fontVariantNumeric="tabular-nums">
                  {features.slice(0, MOST).map((feature) => (
                    <Table.Row key={feature.name}>
                      <Table.Cell py={1}>
                        <AppLink to={skewPath(artifact.dag_id, { artifact, feature: feature.name })}>
                          {feature.name}
                        </AppLink>
                      </Table.Cell>
                      <Table.Cell py={1} color={drifted && feature.drifted ? WARNING : "fg.muted"}>
                        {changeInWords(feature, problem)}
                      </Table.Cell>
                      <Table.Cell py={1} textAlign="end">
                        {formatNumber(feature.score, 3)}
                      </Table.Cell>
                      <Table.Cell py={1} textAlign="end">
                        {formatNumber(feature.threshold, 3)}
                      </Table.Cell>
                    </Table.Row>
                  ))}
                </Table.Body>
              </Table.Root>
            )}
          </>
        );
      }}
    </QueryView>
  );
}
