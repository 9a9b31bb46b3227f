import { Text } from "@chakra-ui/react";
import { LuTriangleAlert } from "react-icons/lu";
import type { Schemas } from "src/api/client";
import { AppLink, ERROR, Time, Tooltip, TwoLines } from "src/components";
import { formatNumber } from "src/format";
import { metricHeading, metricLabel } from "src/pages/Models/words";
import { modelsPath } from "src/routes";

type Metric = Schemas["HeadlineMetric"];

/** The champion, since when it serves, and its headline metric beside that of the version before it. */
export function ModelCell({ dagId, model }: { dagId: string; model: Schemas["ServedModel"] | null }) {
  if (model === null) {
    return <Text color="fg.muted">serves no model</Text>;
  }
  const { name, champion, metric, problem, unmeasured } = model;
  if (problem !== null) {
    return (
      <TwoLines
        first={<Text truncate>{name}</Text>}
        second={
          <Tooltip content={problem}>
            <Text color={ERROR} truncate tabIndex={0}>
              <LuTriangleAlert style={{ display: "inline" }} /> not known: {problem}
            </Text>
          </Tooltip>
        }
      />
    );
  }
  if (champion === null) {
    return <TwoLines first={<Text truncate>{name}</Text>} second="no version serves yet" />;
  }
  return (
    <TwoLines
      first={
        <>
          <AppLink
            to={modelsPath(dagId, { model: name, version: champion.version })}
            display="flex"
            gap={1}
            minWidth={0}
            fontWeight="medium"
          >
            <Text as="span" truncate>
              {name}
            </Text>{" "}
            <span>v{champion.version}</span>
          </AppLink>
          <Text color="fg.muted" fontSize="xs" title="serving since" truncate flexShrink={1000}>
            <Time at={champion.since} />
          </Text>
        </>
      }
      second={metric ? <Headline metric={metric} /> : unmeasured ? `not known: ${unmeasured}` : "no evaluation found"}
    />
  );
}

/** The metric by which versions are compared, and the gain over the version before. */
export function Headline({ metric }: { metric: Metric }) {
  const { name, split, value, gain, compared_with } = metric;
  const against =
    compared_with === null ? "there was no champion to compare with" : `the gain is that over version ${compared_with}`;
  const interval = gain ? `, 95% interval ${formatNumber(gain.low, 3)} to ${formatNumber(gain.high, 3)}` : "";
  const better = gain !== null && gain.difference > 0;
  return (
    <Tooltip content={`${metricLabel(name)} on the split ${split}: ${formatNumber(value, 6)}; ${against}${interval}`}>
      <Text truncate fontVariantNumeric="tabular-nums" tabIndex={0}>
        {metricHeading(name)} <strong>{formatNumber(value)}</strong>
        {gain && (
          <Text as="span" ms={2} color={gain.low > 0 || gain.high < 0 ? (better ? "fg.success" : ERROR) : "fg.muted"}>
            {better ? "▲ +" : "▼ "}
            {formatNumber(gain.difference, 3)}
          </Text>
        )}
      </Text>
    </Tooltip>
  );
}
