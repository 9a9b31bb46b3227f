import { Link, type LinkProps } from "@chakra-ui/react";
import { useEffect } from "react";
import { Link as RouterLink, useLocation, useNavigate } from "react-router-dom";

/** A link to a page of ours or the host's without a reload (`routes.ts`); truncated, a block: flex has no ellipsis. */
export function AppLink({ to, children, ...props }: LinkProps & { to: string }) {
  return (
    <Link asChild color="fg.info" display={props.truncate ? "block" : undefined} {...props}>
      <RouterLink to={to}>{children}</RouterLink>
    </Link>
  );
}

const addressOf = ({ pathname, search }: { pathname: string; search: string }) =>
  `${pathname}?${new URLSearchParams(search)}`;

/** Puts another page in place of this one, unless this one is only still shown: a link or "back" leads on already. */
export function Redirect({ to }: { to: string }) {
  const shown = useLocation();
  const navigate = useNavigate();
  useEffect(() => {
    if (addressOf(window.location).endsWith(addressOf(shown))) {
      void navigate(to, { replace: true });
    }
  });
  return null;
}
