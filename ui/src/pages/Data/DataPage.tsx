import { Tabs } from "@chakra-ui/react";
import { LuChartColumn, LuChartScatter } from "react-icons/lu";
import { Link } from "react-router-dom";
import { useQueryParam } from "src/hooks/useQueryState";
import { Dive } from "src/pages/Data/dive/Dive";
import { Overview } from "src/pages/Data/overview/Overview";
import { dataPath } from "src/routes";
import { useDagId } from "src/shell/OfPipeline";

/** Statistics of every feature (Overview), and the rows themselves (Dive). */
export function DataPage() {
  const dagId = useDagId();
  const [tab] = useQueryParam("tab", "overview");
  return (
    <Tabs.Root value={tab === "dive" ? tab : "overview"} size="sm" variant="line" lazyMount unmountOnExit>
      <Tabs.List mb={3}>
        <Tabs.Trigger value="overview" asChild>
          <Link to={dataPath(dagId)}>
            <LuChartColumn /> Overview
          </Link>
        </Tabs.Trigger>
        <Tabs.Trigger value="dive" asChild>
          <Link to={dataPath(dagId, { tab: "dive" })}>
            <LuChartScatter /> Dive
          </Link>
        </Tabs.Trigger>
      </Tabs.List>
      <Tabs.Content value="overview" pt={0}>
        <Overview />
      </Tabs.Content>
      <Tabs.Content value="dive" pt={0}>
        <Dive />
      </Tabs.Content>
    </Tabs.Root>
  );
}
