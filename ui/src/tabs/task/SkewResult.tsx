import { Text } from "@chakra-ui/react";
import type { Schemas } from "src/api/client";
import { useSkewReport } from "src/api/skew";
import { AppLink, LoadingRows, Numbers, PlainTable, QueryView, StateBadge, WARNING } from "src/components";
import { formatNumber } from "src/format";
import { changeInWords } from "src/pages/Skew/words";
import { skewPath } from "src/routes";

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
              <PlainTable
                label="Features that matter most"
                maxW="6xl"
                dense
                rows={features.slice(0, MOST)}
                rowKey={({ name }) => name}
                columns={[
                  {
                    label: "Feature",
                    cell: ({ name }) => (
                      <AppLink to={skewPath(artifact.dag_id, { artifact, feature: name })}>{name}</AppLink>
                    ),
                  },
                  {
                    label: "Change",
                    cell: (feature) => (
                      <Text color={drifted && feature.drifted ? WARNING : "fg.muted"}>
                        {changeInWords(feature, problem)}
                      </Text>
                    ),
                  },
                  { label: "Distance", end: true, cell: ({ score }) => formatNumber(score, 3) },
                  { label: "Threshold", end: true, cell: ({ threshold }) => formatNumber(threshold, 3) },
                ]}
              />
            )}
          </>
        );
      }}
    </QueryView>
  );
}
