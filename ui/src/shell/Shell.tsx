import { Box, Breadcrumb, HStack, Text } from "@chakra-ui/react";
import { Fragment, useEffect } from "react";
import { Link, Outlet, useLocation, useParams, useSearchParams } from "react-router-dom";
import { AppLink } from "src/components";
import { useChosenInView } from "src/hooks/useChosenInView";
import { useExtensionPages } from "src/hooks/useExtensions";
import { PAGES, pagePath, pipelinesPath, ROOT } from "src/routes";
import { PipelineMenu } from "src/shell/PipelineMenu";

/** What all pages have in common: where one is, the choice of the pipeline, and the way to its other pages. */
export function Shell() {
  const [query] = useSearchParams();
  const { pathname } = useLocation();
  const { model } = useParams();
  const dagId = query.get("dag");
  const pages = usePages();
  const page = pages.find(({ path }) => `${pathname}/`.startsWith(`${ROOT}/${path}/`));
  const { pages: beside } = useExtensionPages("pipelines");
  const opened = beside.find(({ name }) => pathname === `${ROOT}/${name}`)?.label;
  useEffect(() => {
    const before = document.title;
    const ours = [model ?? page?.label ?? opened, dagId, "ML Pipelines", "Airflow"].filter(Boolean).join(" · ");
    document.title = ours;
    // The host's other pages do not set their title anew.
    return () => {
      document.title = document.title === ours ? before : document.title;
    };
  }, [model, page?.label, opened, dagId]);
  const crumbs = [
    <Crumb key="all" label="ML Pipelines" to={page || opened ? pipelinesPath() : undefined} />,
    opened && <Crumb key="opened" label={opened} />,
    page && <PipelineMenu key="pipeline" dagId={dagId} page={page.path} />,
    page && <Crumb key="page" label={page.label} to={model && dagId ? pagePath(page.path, dagId) : undefined} />,
    model && <Crumb key="model" label={model} />,
  ].filter(Boolean);
  return (
    <Box as="main" height="full" overflowY="auto" px={{ base: 3, md: 6 }} py={3}>
      <HStack mb={2} justify="space-between" align="flex-start" wrap="wrap" gap={1}>
        <Breadcrumb.Root size="md">
          <Breadcrumb.List flexWrap="wrap" whiteSpace="nowrap" wordBreak="normal" overflowWrap="normal">
            {crumbs.map((crumb, place) => (
              // biome-ignore lint/suspicious/noArrayIndexKey: a crumb is its place
              <Fragment key={place}>
                {place > 0 && <Breadcrumb.Separator />}
                <Breadcrumb.Item>{crumb}</Breadcrumb.Item>
              </Fragment>
            ))}
          </Breadcrumb.List>
        </Breadcrumb.Root>
        {pathname === ROOT &&
          beside.map(({ name, label }) => (
            <AppLink key={name} to={`${ROOT}/${name}`}>
              {label}
            </AppLink>
          ))}
      </HStack>
      {page && <Navigation dagId={dagId} page={page.path} />}
      <Outlet />
    </Box>
  );
}

/** The pages of a pipeline: ours, then those of extensions. */
function usePages(): readonly { path: string; label: string }[] {
  const { pages } = useExtensionPages("pipeline");
  return [...PAGES, ...pages.map(({ name, label }) => ({ path: name, label }))];
}

function Crumb({ label, to }: { label: string; to?: string }) {
  return to ? (
    <AppLink to={to}>{label}</AppLink>
  ) : (
    <Text as="h1" aria-current="page" fontWeight="semibold" color="fg">
      {label}
    </Text>
  );
}

/** The pages of a pipeline, as the host's own tabs look. */
function Navigation({ dagId, page }: { dagId: string | null; page: string }) {
  const pages = usePages();
  const row = useChosenInView(pages.findIndex(({ path }) => path === page));
  return (
    <HStack
      ref={row}
      as="nav"
      aria-label="Pages of the pipeline"
      gap={1}
      mb={4}
      borderBottomWidth={1}
      overflow="auto hidden"
      scrollbarWidth="none"
    >
      {pages.map(({ path, label }) => (
        <Box
          key={path}
          asChild
          px={3}
          py={2}
          fontSize="sm"
          marginBottom="-1px"
          whiteSpace="nowrap"
          color={path === page ? "fg" : "fg.muted"}
          fontWeight={path === page ? "semibold" : undefined}
          borderBottomWidth="3px"
          borderColor={path === page ? "brand.solid" : "transparent"}
          _hover={{ color: "fg" }}
        >
          <Link
            to={dagId ? pagePath(path, dagId) : `${ROOT}/${path}`}
            aria-current={path === page ? "page" : undefined}
          >
            {label}
          </Link>
        </Box>
      ))}
    </HStack>
  );
}
