"""A proxy's word on who asks, as oauth2-proxy gives it after an OIDC login: two headers.

They are believed of a proxy alone that connects from an address of FORGEWATCH_DEPLOY_PROXY_ADDRESSES.
"""

from ipaddress import IPv6Address, ip_address

from fastapi import HTTPException
from starlette.datastructures import Headers

from deploy.access.roles import Person, checked_name, identity_of
from deploy.access.tokens import OWN
from deploy.settings import DeploySettings

USER, GROUPS = "x-forwarded-user", "x-forwarded-groups"


def person_of_proxy(settings: DeploySettings, peer: str | None, headers: Headers) -> Person | None:
    """Whom the proxy names, with the roles of their groups; None where no such proxy asks or it names nobody.

    peer: the address that the connection comes from. Raises HTTPException (400) where the proxy let a header
    of its own client through beside its own, or the name is none.
    """
    if not _is_trusted(settings, peer) or USER not in headers:
        return None
    if any(len(headers.getlist(name)) > 1 for name in (USER, GROUPS)):
        raise HTTPException(400, f"{USER} and {GROUPS} may come once: the proxy must drop its clients' own")
    # Header bytes are Latin-1 by the standard; proxies send UTF-8.
    user, groups = (
        headers.get(name, "").encode("latin-1").decode(errors="replace") for name in (USER, GROUPS)
    )
    name = checked_name(user)
    if name is None or identity_of(name) in OWN:
        raise HTTPException(400, f"{USER} must be a person's name: 1 to 200 characters, none of them unseen")
    named = {group.strip() for group in groups.split(",")}
    return Person(
        name, frozenset(role for group, role in settings.proxy_roles.items() if group in named), "proxy"
    )


def _is_trusted(settings: DeploySettings, peer: str | None) -> bool:
    try:
        address = ip_address(peer or "")
    except ValueError:
        return False  # a socket file has no address
    if isinstance(address, IPv6Address) and address.ipv4_mapped:
        address = address.ipv4_mapped
    return any(address in network for network in settings.proxy_addresses)
