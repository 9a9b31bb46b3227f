import { Button, Menu, Portal } from "@chakra-ui/react";
import { LuChevronDown } from "react-icons/lu";
import { useNavigate } from "react-router-dom";
import { usePipelines } from "src/api/pipelines";
import { AppLink } from "src/components/AppLink";
import { overviewPath, type PagePath, pagePath } from "src/routes";

/** The choice of the pipeline, in the breadcrumbs; the page stays. */
export function PipelineMenu({ dagId, page }: { dagId: string | null; page: PagePath }) {
  const { data } = usePipelines();
  const navigate = useNavigate();
  const ids = data?.entries.map((pipeline) => pipeline.dag_id) ?? [];
  const current = dagId ?? (ids.length === 1 ? ids[0] : undefined);
  return (
    <Menu.Root>
      {current !== undefined && <AppLink to={overviewPath(current)}>{current}</AppLink>}
      <Menu.Trigger asChild>
        <Button
          size="xs"
          variant="ghost"
          colorPalette="gray"
          fontSize="sm"
          px={1}
          aria-label={current ? `${current}: choose a pipeline` : "Choose a pipeline"}
        >
          {current === undefined && "Choose a pipeline"}
          <LuChevronDown />
        </Button>
      </Menu.Trigger>
      <Portal>
        <Menu.Positioner>
          <Menu.Content maxH="80" overflowY="auto">
            <Menu.RadioItemGroup value={current} onValueChange={({ value }) => void navigate(pagePath(page, value))}>
              {ids.map((id) => (
                <Menu.RadioItem key={id} value={id}>
                  <Menu.ItemIndicator />
                  {id}
                </Menu.RadioItem>
              ))}
            </Menu.RadioItemGroup>
          </Menu.Content>
        </Menu.Positioner>
      </Portal>
    </Menu.Root>
  );
}
